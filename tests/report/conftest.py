"""Run folders made of thin air: what the report reads, without any training."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cafedcl.config.options import to_toml
from cafedcl.core.tensors import pack

Maker = Callable[..., Path]


def config_text(settings: Mapping[str, Any]) -> str:
    sections: dict[str, list[str]] = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(f"{key} = {to_toml(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items())


def scores(accuracy: float, std: float, worst: float) -> dict[str, Any]:
    clients = {"client_mean": accuracy, "client_std": std, "client_worst": worst}
    return {
        "accuracy": accuracy,
        "balanced": accuracy,
        **clients,
        "many": accuracy,
        "medium": None,
        "few": worst,
    }


def line(t: int, server: dict[str, Any] | None, own: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "round": t,
        "status": "ok",
        "participants": [0, 1],
        "dropped": [],
        "failed": [],
        "traffic": {
            "down_floats": 1,
            "down_bytes": 3000,
            "up_floats": 1,
            "up_bytes": 1000,
            "notes_bytes": 0,
        },
        "lr": 0.1,
        "loss": {"ce": 1.0},
        "server": server,
        "own": own,
        "seconds": {"train": 1.0, "aggregate": 0.25, "evaluate": 0.5},
    }


def confusion(accuracy: float, tested: Sequence[int], only: int | None) -> np.ndarray:
    """Return a confusion matrix in which errors go to the next class, or all images to one."""
    table = np.zeros((len(tested), len(tested)), dtype=int)
    for c, images in enumerate(tested):
        right = round(np.nan_to_num(accuracy) * images)
        table[c, c] += right
        table[c, (c + 1) % len(tested)] += images - right
    if only is not None:
        table[:, only] = tested
        table[:, np.arange(len(tested)) != only] = 0
    return table


def tables(
    rng: np.random.Generator, counts: np.ndarray, extras: Sequence[str], confused: np.ndarray
) -> dict[str, torch.Tensor]:
    clients, classes = counts.shape
    found: dict[str, np.ndarray] = {
        "own/all/score": rng.uniform(0.5, 1, clients),
        "own/all/accuracy": rng.uniform(0.5, 1, clients),
        "own/all/recall": rng.uniform(0, 1, (clients, classes)),
    }
    if "server" in extras:
        found["server/confusion"] = confused
        found["server/clients"] = rng.uniform(0.5, 1, clients)
    if "confidence" in extras:
        for name in ("confidence", "confidence_data", "confidence_val", "uncertainty"):
            found[f"notes/{name}"] = rng.uniform(0.05, 1, (clients, classes))
    if "prototypes" in extras:
        found["anchors/prototypes"] = rng.normal(size=(classes, 12))
        found["anchors/known"] = np.ones(classes, bool)
    if "loop" in extras:
        for name in ("drift", "feedback", "heterogeneity", "variance"):
            found[f"loop/{name}"] = rng.uniform(0, 1, classes)
    if "scores" in extras:
        for name in ("auroc", "auprc", "sensitivity"):
            found[f"scores/server/{name}"] = rng.uniform(0.5, 1, classes)
        found["scores/server/bins"] = np.array([[4.0, 3.0, 2.0]] * 15)
        found["scores/own/bins"] = np.array([[[2.0, 1.8, 1.0]] * 15] * clients)
        found["scores/own/bins"][0] = np.nan
        found["wrong/labels"] = np.array([0, 1])
        found["wrong/predicted"] = np.array([1, 2])
        found["wrong/probability"] = np.array([0.9, 0.8])
        found["wrong/images"] = rng.integers(0, 255, (2, 3, 8, 8), dtype=np.uint8)
    kinds = {"f": torch.float32, "i": torch.int32, "b": torch.bool, "u": torch.uint8}
    return {
        name: torch.as_tensor(value).to(kinds[value.dtype.kind]) for name, value in found.items()
    }


@pytest.fixture(scope="session")
def make_run() -> Maker:
    """Write a run folder. ``accuracy`` is the last round's; earlier rounds are worse. ``extras`` is
    what it records. There are 100 test images per class unless ``tested`` says how many; ``only``
    is the one class that the server's model predicts.
    """

    def make(
        path: Path,
        method: str = "fedavg",
        seed: int = 0,
        accuracy: float = 0.9,
        *,
        std: float = 0.05,
        worst: float = 0.7,
        rounds: int = 3,
        done: int | None = None,
        clients: int = 6,
        classes: int = 4,
        names: Sequence[str] | None = None,
        extras: Sequence[str] = ("server",),
        samples: int = 0,
        tested: Sequence[int] | None = None,
        only: int | None = None,
        **settings: Any,
    ) -> Path:
        rng = np.random.default_rng(seed)
        (path / "evaluations").mkdir(parents=True)
        flat = {
            "method.name": method,
            "run.seed": seed,
            "data.name": "digits",
            "split.kind": "dirichlet",
            "split.alpha": 0.1,
            "split.ir": 1.0,
            "federation.clients": clients,
            "federation.rounds": rounds,
            "train.lr": 0.1,
        } | {name.replace("__", "."): value for name, value in settings.items()}
        (path / "config.toml").write_text(config_text(flat), encoding="utf-8")
        about = {
            "command": ["cafedcl", "run", "--method", method],
            "python": "3",
            "packages": {"torch": "2"},
        }
        (path / "environment.json").write_text(json.dumps(about), encoding="utf-8")
        counts = rng.integers(0, 30, (clients, classes)) + np.eye(clients, classes, dtype=int)
        header = {"names": list(names or map(str, range(classes))), "shape": [1, 8, 8]}
        data = {
            "counts": torch.as_tensor(counts),
            "mean": torch.zeros(1, 1, 1, 1),
            "std": torch.ones(1, 1, 1, 1),
        }
        (path / "data.safetensors").write_bytes(pack(data, header))
        number = rounds if done is None else done
        lines = []
        for t in range(number):
            share = (t + 1) / number
            found = scores(accuracy * share, std / share, worst * share)
            if "scores" in extras and t + 1 == number:
                found |= {"auroc": 0.9, "auprc": 0.8, "sensitivity": 0.7, "ece": 0.1}
                found |= {"macro_f1": 0.6}
            lines.append(json.dumps(line(t, found if "server" in extras else None, found)))
            confused = confusion(accuracy * share, tested or [100] * classes, only)
            packed = pack(tables(rng, counts, extras, confused), {"round": t})
            (path / "evaluations" / f"{t:06d}.safetensors").write_bytes(packed)
        (path / "metrics.jsonl").write_text(
            "".join(text + "\n" for text in lines), encoding="utf-8"
        )
        for i in range(samples):
            (path / "samples").mkdir(exist_ok=True)
            sheet = io.BytesIO()
            Image.new("L", (16, 16), 100 + i).save(sheet, "PNG")
            (path / "samples" / f"{i:06d}.png").write_bytes(sheet.getvalue())
        return path

    return make
