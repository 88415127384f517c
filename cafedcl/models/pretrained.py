"""Pretrained encoders of timm, torchvision and transformers, with their own normalisation."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.config.model_options import ModelOptions
from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional
from cafedcl.core.paths import is_folder
from cafedcl.models.base import FIXED_STATISTICS, average_pool

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
USUAL_SIZE = 224
PREPROCESSOR = "preprocessor_config.json"
"""The file of transformers with a model's normalisation."""
BATCH_NORM = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Normalisation:
    """What an encoder expects: mean and standard deviation per colour, and the image's size."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    size: int = USUAL_SIZE


class PretrainedEncoder(nn.Module):
    """A network from elsewhere, without its head, on images of any size, grey or in colour."""

    def __init__(
        self, net: nn.Module, normalisation: Normalisation, shape: Shape, *, frozen_norms: bool
    ) -> None:
        super().__init__()
        if shape[0] not in (1, 3):
            raise CafedclError(f"images of {shape[0]} channels; it takes grey or RGB images")
        self.net = net
        self.normalisation = normalisation
        self.size = normalisation.size
        self.frozen_norms = frozen_norms
        mean = torch.tensor(normalisation.mean).view(1, -1, 1, 1)
        std = torch.tensor(normalisation.std).view(1, -1, 1, 1)
        # Images come standardised by `mean` and `std`. A grey image has one mean for all colours;
        # `scale` and `shift` convert it to the normalisation that the encoder knows.
        self.mean = mean.mean(1, keepdim=True) if shape[0] == 1 else mean
        self.std = std.mean(1, keepdim=True) if shape[0] == 1 else std
        self.grey = shape[0] == 1
        # Not among the weights: they follow from the model's name.
        self.register_buffer("scale", self.std / std, persistent=False)
        self.register_buffer("shift", (self.mean - mean) / std, persistent=False)
        for module in self.norms():
            # Read by an engine, which cannot pad batches whose statistics count.
            setattr(module, FIXED_STATISTICS, frozen_norms)
        self.train()

    def description(self) -> dict[str, str]:
        """Return the files from which ``hf:`` can build it again, without its weights.

        Networks of timm and torchvision need none: their names determine them.
        """
        if not isinstance(self.net, TransformersBody):
            return {}
        expected = {
            "image_mean": self.normalisation.mean,
            "image_std": self.normalisation.std,
            "size": {"height": self.size, "width": self.size},
        }
        return {"config.json": self.net.config_text(), PREPROCESSOR: json.dumps(expected)}

    def norms(self) -> list[nn.Module]:
        """Return the batch normalisations."""
        return [module for module in self.net.modules() if isinstance(module, BATCH_NORM)]

    def train(self, mode: bool = True) -> "PretrainedEncoder":
        """Switch to training, but not the batch normalisations whose statistics are frozen."""
        super().train(mode)
        if self.frozen_norms:
            for module in self.norms():
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of standardised images."""
        if self.grey:
            scale: Any = self.scale
            shift: Any = self.shift
            x = x * scale.to(x.dtype) + shift.to(x.dtype)
        if x.shape[-2:] != (self.size, self.size):
            smaller = min(x.shape[-2:]) > self.size
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=smaller)
        features: Tensor = self.net(x)
        return features


class TransformersBody(nn.Module):
    """A model of transformers that returns pooled features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def config_text(self) -> str:
        """Return the model's config as transformers writes it."""
        config: Any = self.model.config
        return str(config.to_json_string())

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled output, or the class token's where there is none."""
        found: Any = self.model(pixel_values=x)
        pooled: Tensor | None = getattr(found, "pooler_output", None)
        if pooled is None:
            pooled = found.last_hidden_state
        if pooled.dim() == 3:
            pooled = pooled[:, 0]
        return average_pool(pooled)


Body = tuple[nn.Module, Normalisation]


def timm_body(name: str, pretrained: bool) -> Body:
    """Return a network of timm without its head."""
    timm = optional("timm", "timm", f"model 'timm:{name}'")
    net: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0)
    expected = timm.data.resolve_model_data_config(net)
    size = int(expected["input_size"][-1])
    return net, Normalisation(tuple(expected["mean"]), tuple(expected["std"]), size)


def torchvision_body(name: str, pretrained: bool) -> Body:
    """Return a network of torchvision without its last layer."""
    torchvision = optional("torchvision", "torchvision", f"model 'torchvision:{name}'")
    weights = torchvision.models.get_model_weights(name).DEFAULT
    net: nn.Module = torchvision.models.get_model(name, weights=weights if pretrained else None)
    *_, (last, _) = (
        (place, module) for place, module in net.named_modules() if isinstance(module, nn.Linear)
    )
    parent, _, key = last.rpartition(".")
    net.get_submodule(parent)._modules[key] = nn.Identity()
    expected = weights.transforms()
    size = int(expected.crop_size[0])
    return net, Normalisation(tuple(expected.mean), tuple(expected.std), size)


def transformers_body(name: str, pretrained: bool) -> Body:
    """Return an image model of transformers, from the hub or from a folder."""
    transformers = optional("transformers", "transformers", f"model 'hf:{name}'")
    # Its progress bar would appear in the middle of other lines, and its report asks to train
    # weights that are left out here.
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    path = name
    if is_folder(name):
        path = str(Path(name).expanduser())
        if not Path(path).is_dir():
            raise CafedclError("there is no such folder")
    config = transformers.AutoConfig.from_pretrained(path)
    if pretrained:
        net, loaded = transformers.AutoModel.from_pretrained(path, output_loading_info=True)
        if len(loaded["missing_keys"]) >= len(net.state_dict()):
            raise CafedclError("none of the weights in its file are of this architecture")
    else:
        net = transformers.AutoModel.from_config(config)
    if hasattr(getattr(net, "pooler", None), "dense"):
        # The pooler of a ViT is trained for another task, or not at all: without it, the features
        # are those of the class token.
        net.pooler = None
    return TransformersBody(net), _preprocessing(transformers, path, config)


def _preprocessing(transformers: Any, path: str, config: Any) -> Normalisation:
    """Return the normalisation in a model's preprocessor_config.json; without one, ImageNet's.

    The file is read as it is: the processors of transformers need torchvision.
    """
    expected: dict[str, Any] = {}
    found = transformers.utils.cached_file(
        path, PREPROCESSOR, _raise_exceptions_for_missing_entries=False
    )
    if found is not None:
        expected = json.loads(Path(found).read_text(encoding="utf-8"))
    size = getattr(config, "image_size", None) or _side(expected.get("size")) or USUAL_SIZE
    mean = tuple(expected.get("image_mean") or IMAGENET_MEAN)
    std = tuple(expected.get("image_std") or IMAGENET_STD)
    return Normalisation(mean, std, _side(size) or USUAL_SIZE)


def _side(size: Any) -> int | None:
    """Return the side of an image from one of the forms in which configs give its size."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    if isinstance(size, list | tuple):
        size = size[0]
    return int(size) if size else None


BODIES: dict[str, Callable[[str, bool], Body]] = {
    "timm": timm_body,
    "torchvision": torchvision_body,
    "hf": transformers_body,
}


def pretrained_encoder(
    options: ModelOptions, shape: Shape, *, initial: bool
) -> tuple[PretrainedEncoder, list[str]]:
    """Return a pretrained encoder, and remarks about it for the user.

    Without ``initial``, other weights will be loaded, and the published ones are not needed.
    """
    source, _, name = options.name.partition(":")
    wanted = initial and options.pretrained and not options.weights
    net, normalisation = BODIES[source](name, wanted)
    if wanted and not all(bool(value.isfinite().all()) for value in net.state_dict().values()):
        raise CafedclError("its weights hold NaN or infinite numbers; download or save it again")
    if not all(std > 0 for std in normalisation.std):
        raise CafedclError(f"its normalisation divides by {min(normalisation.std):g}")
    if options.size:
        normalisation = Normalisation(normalisation.mean, normalisation.std, options.size)
    frozen = options.batchnorm == "frozen"
    encoder = PretrainedEncoder(net, normalisation, shape, frozen_norms=frozen)
    notes = []
    if shape[1:] != (encoder.size, encoder.size):
        notes.append(
            f"model '{options.name}': images of {shape[1]}×{shape[2]} are resized to "
            f"{encoder.size}×{encoder.size} (model.size chooses another size)"
        )
    if encoder.norms() and frozen:
        notes.append(
            f"model '{options.name}': its {len(encoder.norms())} batch normalisations keep the "
            "statistics that they were published with (model.batchnorm = trained changes them)"
        )
    return encoder, notes
