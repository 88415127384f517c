"""The options of the encoder."""

from dataclasses import dataclass

from cafedcl.config.options import option


@dataclass(frozen=True)
class ModelOptions:
    """The encoder."""

    name: str = option(
        "auto", "encoder, or your own as `package.module:factory`; auto: chosen by image size"
    )
    width: float = option(1.0, "factor for the number of channels", above=0.0, high=64.0)
