"""The options of the encoder."""

from dataclasses import dataclass

from cafedcl.config.options import option, to_toml

SOURCES = ("timm", "torchvision", "hf")
"""Where pretrained encoders come from: the word before the colon in a model's name."""


@dataclass(frozen=True)
class ModelOptions:
    """The encoder."""

    name: str = option(
        "auto",
        "encoder; a pretrained one as timm:NAME, torchvision:NAME or hf:NAME_OR_PATH; or your own "
        "as `package.module:factory`; auto: chosen by image size",
    )
    width: float = option(1.0, "factor for the number of channels", above=0.0, high=64.0)
    weights: str = option(
        "", "file of weights (.safetensors) that the encoder starts with; those that fit are loaded"
    )
    freeze: str = option(
        "",
        "weights of the encoder that are not trained: all, or prefixes of their names, such as "
        "conv,blocks.0",
    )
    pretrained: bool = option(
        True, "timm, torchvision, hf: start with the published weights; false: random ones"
    )
    size: int = option(
        0,
        "timm, torchvision, hf: pixels that images are resized to; 0: the encoder's own size",
        low=0,
        high=4096,
    )
    batchnorm: str = option(
        "frozen",
        "timm, torchvision, hf: statistics of batch normalisation. frozen: the published ones; "
        "trained: those of each batch, which are averaged over clients",
        choices=("frozen", "trained"),
    )

    @property
    def source(self) -> str:
        """Where a pretrained encoder comes from; empty for any other."""
        source, colon, _ = self.name.partition(":")
        return source if colon and source in SOURCES else ""

    def contradiction(self) -> str | None:
        """Return which option this encoder would ignore, or None."""
        if self.source:
            if self.width != 1:
                return f"width = {self.width:g}: '{self.name}' has a width of its own; leave it out"
            return None
        defaults = ModelOptions()
        for name in ("pretrained", "size", "batchnorm"):
            value = getattr(self, name)
            if value != getattr(defaults, name):
                return (
                    f"{name} = {to_toml(value)}: only timm:, torchvision: and hf: models use it; "
                    f"'{self.name}' does not"
                )
        return None
