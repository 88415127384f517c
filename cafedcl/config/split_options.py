"""The options of a split, and their short form, such as ``pathological:2,ir=10``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cafedcl.config.kinds import parse_kind, unused_option
from cafedcl.config.options import option

SPLITS: dict[str, str | None] = {
    "dirichlet": "alpha",
    "pathological": "classes",
    "quantity": "alpha",
    "iid": None,
    "natural": None,
    "source": None,
    "file": "file",
}
"""The splits, and the option after the colon in ``--split dirichlet:0.1``."""
OWN_OPTIONS = {
    "dirichlet": ("alpha", "form"),
    "pathological": ("classes",),
    "quantity": ("alpha",),
    "iid": (),
    "natural": (),
    "source": (),
    "file": ("file",),
}
"""The options of each split that only some splits have."""
OF_ONE_KIND = frozenset(name for names in OWN_OPTIONS.values() for name in names)
"""The options that are dropped with their kind of split if another one is chosen."""
SHARED_OPTIONS = ("ir", "tail", "validation")
"""The options of every split but ``file``, whose images were assigned before."""


def used_options(kind: str) -> set[str]:
    """Return the names of the options that a kind of split uses."""
    assigned = () if kind == "file" else SHARED_OPTIONS
    return {"kind", *OWN_OPTIONS[kind], *assigned}


@dataclass(frozen=True)
class SplitOptions:
    """How training images are split over clients."""

    kind: str = option(
        "auto",
        "how to split images over clients; auto: natural if the data have clients, else dirichlet",
        choices=("auto", *SPLITS),
    )
    alpha: float = option(
        0.1, "dirichlet, quantity: concentration α; smaller is more skewed", above=0.0
    )
    form: str = option(
        "client",
        "dirichlet: draw class proportions per client (equal sizes), or client proportions per "
        "class (unequal sizes)",
        choices=("client", "class"),
    )
    classes: int = option(2, "pathological: classes per client", low=1)
    ir: float = option(
        1.0, "imbalance ratio of the long tail over all clients, applied before the split", low=1.0
    )
    tail: str = option("exponential", "shape of the long tail", choices=("exponential", "step"))
    file: str = option(
        "",
        "file: path of a split: a table (.csv) with the columns image and client, or what "
        "`cafedcl split --export` wrote",
    )
    validation: float = option(
        0.1,
        "share of each client's images held out for validation, stratified by class",
        low=0.0,
        high=0.9,
    )

    def contradiction(self) -> str | None:
        """Return which option this kind of split would ignore, or None."""
        if self.kind == "auto":
            return None
        problem = unused_option(self, used_options(self.kind), OWN_OPTIONS, "split", self.kind)
        if problem:
            return problem
        if self.kind == "file" and not self.file:
            return "file: the path is missing; for example: --split file:split.csv"
        return None


def parse_split(text: str) -> dict[str, Any]:
    """Return the split section for ``dirichlet:0.1`` or ``pathological:2,ir=10``."""
    return parse_kind("split", text, SPLITS, "pathological:2,ir=10", paths=("file",))


def replaced_split(section: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a split section with the kind and options of ``text`` instead of its own.

    Options that belong to one kind of split are dropped with the old kind; the others stay.
    """
    kept = {key: value for key, value in section.items() if key not in OF_ONE_KIND}
    return kept | parse_split(text)
