"""The settings that methods are compared in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cafedcl.config.data_options import DataOptions
from cafedcl.config.split_options import SPLITS, SplitOptions

FlatSettings = dict[str, Any]
"""A config with flat names, such as ``train.lr``."""
RARELY_CHANGED = {
    "data.test": DataOptions.test,
    "data.images": DataOptions.images,
    "data.size": DataOptions.size,
    "data.client": DataOptions.client,
    "data.group": DataOptions.group,
    "data.window": DataOptions.window,
    "split.tail": SplitOptions.tail,
    "split.validation": SplitOptions.validation,
}
"""Options that a setting's title names only if they differ from the defaults given here."""


@dataclass(frozen=True, order=True)
class Setting:
    """What methods are compared on: a data set, a split and a number of clients."""

    data: str
    kind: str
    value: str
    """The value after the colon of the split: α, or classes per client."""
    ir: float
    clients: int
    others: str = ""
    """Other options that are not at their defaults, such as ``data.images=500``."""

    @classmethod
    def of(cls, settings: FlatSettings, other_data: str = "") -> "Setting":
        """Read it from a run's settings."""
        kind = str(settings.get("split.kind", "?"))
        main = SPLITS.get(kind)
        value = "" if main is None else str(settings.get(f"split.{main}", ""))
        if kind == "dirichlet" and settings.get("split.form") == "class":
            value += ",form=class"
        ratio = settings.get("split.ir", 1.0)
        clients = settings.get("federation.clients", 0)
        others = [
            f"{name}={settings[name]}"
            for name, usual in RARELY_CHANGED.items()
            if settings.get(name, usual) != usual
        ]
        others += [other_data] if other_data else []
        return cls(
            data=str(settings.get("data.name", "?")),
            kind=kind,
            value=value,
            ir=float(ratio),
            clients=int(clients),
            others=", ".join(others),
        )

    @property
    def split(self) -> str:
        """The split as it is written on the command line."""
        words = [self.value] if self.value else []
        if self.ir != 1:
            words.append(f"ir={self.ir:g}")
        return f"{self.kind}:{','.join(words)}" if words else self.kind

    @property
    def title(self) -> str:
        """The setting as a short title."""
        others = f"{self.others}, " if self.others else ""
        return f"{Path(self.data).name}, {self.split}, {others}{self.clients} clients"
