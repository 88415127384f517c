"""The encoders by name, and your own by import path."""

import torch
from torch import Tensor, nn

from cafedcl.config.model_options import ModelOptions
from cafedcl.core.contract import Shape
from cafedcl.core.environment import total_memory
from cafedcl.core.errors import CafedclError, in_words, nearest, place_of
from cafedcl.core.imports import explained_failure, import_path
from cafedcl.core.steps import step
from cafedcl.models.base import Encoder, Factory, Network
from cafedcl.models.initial_weights import freeze, load_weights
from cafedcl.models.resnet import ResNet8, ResNet18, ResNet18Large
from cafedcl.models.small import CNN4, CNN8, MLP

__all__ = [
    "MODELS",
    "Encoder",
    "Network",
    "Shape",
    "auto_model",
    "build_encoder",
    "feature_dim",
    "make_encoder",
    "place_of_model",
]

MODELS: dict[str, Factory] = {
    "resnet18": ResNet18,
    "resnet18-7x7": ResNet18Large,
    "resnet8": ResNet8,
    "cnn4": CNN4,
    "cnn8": CNN8,
    "mlp": MLP,
}


LARGE_IMAGES = 64
"""Above this side the paper's ResNet, made for 32 pixels, would be slow: 54 GFLOP at 224."""


def auto_model(shape: Shape) -> str:
    """Return the model for images of this shape.

    It is the paper's, a small CNN below 16 pixels, or a ResNet for large images above 64.
    """
    if min(shape[1:]) < 16:
        return "cnn8"
    return "resnet18-7x7" if max(shape[1:]) > LARGE_IMAGES else "resnet18"


def make_encoder(
    options: ModelOptions, shape: Shape, *, initial: bool = True
) -> tuple[nn.Module, list[str]]:
    """Return the encoder that the options name, and remarks about it for the user.

    Without ``initial``, the weights do not matter: others will be loaded.
    """
    notes: list[str] = []
    encoder: nn.Module
    if options.source:
        # Imported here because most runs do not need it.
        from cafedcl.models.pretrained import pretrained_encoder

        loading = step(f"loading the model {options.name}")
        with loading, explained_failure(f"model '{options.name}'"):
            encoder, notes = pretrained_encoder(options, shape, initial=initial)
    else:
        encoder = build_encoder(options.name, shape, options.width)
    if options.weights and initial:
        notes += load_weights(encoder, options.weights)
    freeze(encoder, options.freeze)
    return encoder, notes


def build_encoder(name: str, shape: Shape, width: float) -> nn.Module:
    """Build an encoder by name, or by ``package.module:factory``; calls factory(shape, width)."""
    factory = MODELS.get(name)
    if factory is None:
        if ":" not in name:
            hint = nearest(name, list(MODELS))
            raise CafedclError(
                f"model '{name}': there is no such model; {hint} (your own: package.module:factory)"
            )
        factory = import_path(name, "model")
    try:
        if name in MODELS:
            _require_memory(factory, shape, width)
        encoder = factory(shape, width)
    except CafedclError as error:
        raise CafedclError(f"model '{name}': {error}") from None
    except (Exception, SystemExit) as error:
        what = in_words(error, place_of(factory))
        raise CafedclError(
            f"model '{name}': building it for images of {shape} failed: {what}"
        ) from error
    if not isinstance(encoder, nn.Module):
        raise CafedclError(
            f"model '{name}': it must return a torch.nn.Module, not {type(encoder).__name__}"
        )
    return encoder


def _require_memory(factory: Factory, shape: Shape, width: float) -> None:
    """Refuse a model whose weights do not fit into memory: Linux would kill the process."""
    # The meta device builds the layers without their weights.
    with torch.device("meta"):
        weights = sum(value.nbytes for value in factory(shape, width).state_dict().values())
    if weights > total_memory():
        raise CafedclError(
            f"its weights need {weights / 2**30:,.0f} GiB, and this machine has "
            f"{total_memory() / 2**30:,.0f}; use a smaller model.width than {width:g}"
        )


def place_of_model(options: ModelOptions) -> str:
    """Return where the user's own model is made, as the end of a message; empty for others."""
    if options.source or ":" not in options.name:
        return ""
    return place_of(import_path(options.name, "model"))


def feature_dim(encoder: nn.Module, shape: Shape, place: str = "") -> int:
    """Return the number of features of an encoder; ``place`` says where the user made it."""
    training = encoder.training
    with torch.no_grad(), explained_failure(f"it fails on images of {shape}", place):
        features: Tensor = encoder.eval()(torch.zeros(2, *shape))
    encoder.train(training)
    if not isinstance(features, Tensor):
        raise CafedclError(
            f"it must return a tensor (batch, features), and not {type(features).__name__}{place}"
        )
    if features.dim() != 2 or len(features) != 2 or not features.shape[1]:
        shape_found = tuple(features.shape)
        raise CafedclError(
            f"it must return (batch, features); for 2 images it returned {shape_found}{place}"
        )
    return features.shape[1]
