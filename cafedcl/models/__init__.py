"""The encoders by name, and your own by import path."""

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Shape
from cafedcl.core.environment import total_memory
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.imports import import_path
from cafedcl.models.base import Encoder, Factory, Network
from cafedcl.models.resnet import ResNet8, ResNet18
from cafedcl.models.small import CNN4, CNN8, MLP

__all__ = ["MODELS", "Encoder", "Network", "Shape", "auto_model", "build_encoder", "feature_dim"]

MODELS: dict[str, Factory] = {
    "resnet18": ResNet18,
    "resnet8": ResNet8,
    "cnn4": CNN4,
    "cnn8": CNN8,
    "mlp": MLP,
}


def auto_model(shape: Shape) -> str:
    """Return the model for images of this shape: the paper's, or a small CNN below 16 pixels."""
    return "cnn8" if min(shape[1:]) < 16 else "resnet18"


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
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise CafedclError(
            f"model '{name}': building it for images of {shape} failed: {what}"
        ) from error
    if not isinstance(encoder, nn.Module):
        raise CafedclError(
            f"model '{name}': it must return a torch.nn.Module, not {type(encoder).__name__}"
        )
    return encoder


def _require_memory(factory: Factory, shape: Shape, width: float) -> None:
    """Refuse a model whose weights do not fit into memory: Linux ends a process that tries."""
    # The meta device builds the layers without their weights.
    with torch.device("meta"):
        weights = sum(value.nbytes for value in factory(shape, width).state_dict().values())
    if weights > total_memory():
        raise CafedclError(
            f"its weights need {weights / 2**30:,.0f} GiB, and this machine has "
            f"{total_memory() / 2**30:,.0f}; use a smaller model.width than {width:g}"
        )


def feature_dim(encoder: nn.Module, shape: Shape) -> int:
    """Return the number of features of an encoder."""
    training = encoder.training
    with torch.no_grad():
        features: Tensor = encoder.eval()(torch.zeros(2, *shape))
    encoder.train(training)
    if features.dim() != 2 or len(features) != 2:
        shape_found = tuple(features.shape)
        raise CafedclError(
            f"the model must return (batch, features); for 2 images it returned {shape_found}"
        )
    return features.shape[1]
