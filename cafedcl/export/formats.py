"""One file with a trained model that takes raw images and returns probabilities.

A file has these results: ``probabilities`` (N, classes), ``predicted`` (N), the numbers of the
classes with the highest score, and ``strangeness`` (N) if the model knows its limits: above 1, an
image is unlike those seen in training. Images are uint8, (N, channels, height, width); the names of
the classes are inside.
"""

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, refuse_other_file, require_writable, write_atomically
from cafedcl.core.imports import optional
from cafedcl.core.steps import step
from cafedcl.core.tensors import Tensors
from cafedcl.federation.result import Run
from cafedcl.federation.run_folder import refuse_file_of_run
from cafedcl.federation.served_model import ServedModel

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
"""The formats, and the endings of their files."""
BEGINNINGS = {
    "onnx": re.compile(rb"\x08"),
    "torch": re.compile(rb"PK\x03\x04.{26}(archive|[^/]{1,60}/(data|models|version))/", re.DOTALL),
    "safetensors": re.compile(rb'.{8}\{"__metadata__":\{.*"calibration_images":', re.DOTALL),
}
"""The beginnings of files of the formats. Many files are zip archives, which are distinguished by
the first name in them.
"""
OPSET = 18
"""The version of ONNX's operators; older ones lack the reductions that some methods need."""


class ExportedModel(nn.Module):
    """The exported model, which returns all its results as a tuple."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the results in the order of `outputs`."""
        return self.model.judge(images)


def outputs(model: ServedModel) -> list[str]:
    """Return the names of a file's results."""
    names = ["probabilities", "predicted"]
    return [*names, "strangeness"] if model.knows_limits else names


def write_model(run: Run, to: str, out: Path, client: int | str | None = None) -> ServedModel:
    """Write a run's model into a file of the given format, and return it."""
    refuse_file_of_run(out)
    refuse_other_file(out, BEGINNINGS[to], f"model for {to}")
    run.require_learned()
    require_writable(out)
    model = run.served(client)
    packed = {"onnx": as_onnx, "torch": as_torch, "safetensors": as_safetensors}[to]
    with explained(out), step(f"writing the model for {to}"):
        # If the disk is full, the libraries' own writers replace an old file by half a file.
        write_atomically(out, packed(model, about(run, model)))
    return model


def about(run: Run, model: ServedModel) -> dict[str, Any]:
    """Return a file's metadata."""
    return {
        "classes": list(model.classes),
        "shape": list(model.shape),
        "method": run.config.label,
        "outputs": outputs(model),
        "calibration_images": model.calibration_images,
        # The grey values that became 0 and 255; a file of 8 bits needs no window.
        "window": list(run.window.limits),
    }


def as_texts(says: dict[str, Any]) -> dict[str, str]:
    """Return values as texts, for formats that store nothing else; lists are written as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in says.items()
    }


def exported_program(model: ServedModel) -> torch.export.ExportedProgram:
    """Return the model as a program of PyTorch, for any number of images."""
    # Two images: with one, the number of images would become a constant.
    example = torch.zeros(2, *model.shape, dtype=torch.uint8)
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad(), quiet():
        return torch.export.export(
            ExportedModel(model).eval(), (example,), dynamic_shapes=({0: batch},)
        )


def as_torch(model: ServedModel, says: dict[str, Any]) -> bytes:
    """Return a program that `torch.export.load` reads; no other package is needed to run it."""
    out = io.BytesIO()
    with quiet():
        torch.export.save(
            exported_program(model), out, extra_files={"about.json": json.dumps(says)}
        )
    return out.getvalue()


def as_onnx(model: ServedModel, says: dict[str, Any]) -> bytes:
    """Return an ONNX file with its metadata."""
    for package in ("onnx", "onnxscript"):
        optional(package, "onnx", "--to onnx")
    with torch.no_grad(), quiet():
        made = torch.onnx.export(
            exported_program(model),
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=outputs(model),
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props.update(as_texts(says))
    return bytes(made.model_proto.SerializeToString())


def as_safetensors(model: ServedModel, says: dict[str, Any]) -> bytes:
    """Return all tensors of the model; `load_safetensors` reads them into a run's model."""
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    # Two weights that share their memory are refused, so every one is a copy.
    return save({name: value.clone() for name, value in tensors.items()}, metadata=as_texts(says))


def load_safetensors(path: str | Path, run: Run, client: int | str | None = None) -> ServedModel:
    """Return the model in a file, with the run's architecture."""
    model = run.served(client)
    tensors: Tensors = {}
    try:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensors[name] = file.get_tensor(name)
        model.load_state_dict(tensors)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CafedclError(f"{path}: not a file of this run's model: {reason}") from None
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the messages of PyTorch's exporters."""
    loggers: list[Any] = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
