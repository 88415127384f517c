"""The options of attacks, for experiments, and of the server's defence against them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cafedcl.config.kinds import parse_kind, short_form, unused_option
from cafedcl.config.options import option

ATTACKS: dict[str, tuple[str, ...]] = {
    "none": (),
    "label-flip": ("clients",),
    "sign-flip": ("clients", "claim", "since"),
    "scale": ("clients", "claim", "factor", "since"),
    "noise": ("clients", "claim", "factor", "since"),
    "swap": ("clients", "claim", "since"),
    "long": ("clients", "claim", "since"),
    "sums": ("clients", "claim", "since"),
    "huge": ("clients", "claim", "since"),
    "counts": ("clients", "since"),
}
"""The attacks and their options."""
DEFENCES: dict[str, tuple[str, ...]] = {
    "none": (),
    "clip": ("factor", "cross_check"),
    "peers": ("factor", "cross_check"),
    "trimmed-mean": ("liars",),
    "median": (),
    "krum": ("liars",),
    "multi-krum": ("liars",),
}
"""The defences and their options."""


@dataclass(frozen=True)
class AttackOptions:
    """Clients that lie, to measure the effect. Only for experiments."""

    kind: str = option(
        "none",
        "what lying clients do. label-flip: train on class C−1−y instead of y; sign-flip: send the "
        "opposite of their update; scale: send a multiple of it; noise: send noise; swap: send the "
        "prototype of a class as another's; long: prototypes of ±1 in every coordinate; sums: the "
        "opposite of their sums over a class's images; huge: weights of 3e38; counts: claim a "
        "billion images",
        choices=tuple(ATTACKS),
    )
    clients: int = option(0, "number of clients that lie, drawn at random", low=0, high=10_000_000)
    claim: str = option(
        "honest",
        "the confidence that liars claim: honest, the most that their enrolment allows, or 1",
        choices=("honest", "most", "one"),
    )
    factor: float = option(
        -10.0, "scale: factor of the update; noise: its length in lengths of the update"
    )
    since: int = option(
        1, "the first round in which they lie; before it they are honest", low=1, high=1_000_000
    )

    def contradiction(self) -> str | None:
        """Return which option this attack would ignore, or None."""
        used = {"kind", *ATTACKS[self.kind]}
        return unused_option(self, used, ATTACKS, "attack", self.kind)


@dataclass(frozen=True)
class DefenceOptions:
    """A server step that lying clients cannot ruin."""

    kind: str = option(
        "none",
        "how the server combines replies. none: as the method says; clip: clip updates and pull in "
        "class means that are far beyond the median; peers: clip, and leave out clients whose "
        "updates disagree with those of clients with similar classes; "
        "trimmed-mean, median: of every coordinate; "
        "krum, multi-krum: take the reply, or the replies, closest to the others",
        choices=tuple(DEFENCES),
    )
    factor: float = option(
        2.0, "clip, peers: maximum length of an update, in median lengths", above=0.0, high=1e6
    )
    cross_check: bool = option(
        False,
        "clip, peers: limit a client's confidence in a class by how well its prototype agrees with "
        "the other clients'",
    )
    liars: float = option(
        0.2,
        "trimmed-mean, krum, multi-krum: share of the clients that may lie",
        low=0.0,
        high=0.49,
    )

    def contradiction(self) -> str | None:
        """Return which option this defence would ignore, or None."""
        used = {"kind", *DEFENCES[self.kind]}
        return unused_option(self, used, DEFENCES, "defence", self.kind)


def replaced_attack(_: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the attack section for ``label-flip:2`` or ``sign-flip:4,claim=most``."""
    return parse_kind("attack", text, _first_options(ATTACKS), "sign-flip:4,claim=most")


def replaced_defence(_: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the defence section for ``clip:1.5`` or ``median``."""
    return parse_kind("defence", text, _first_options(DEFENCES), "clip:1.5")


def short_attack(table: Mapping[str, Any]) -> str:
    """Return the short form of the attack section, as `replaced_attack` reads it."""
    return short_form(table, _first_options(ATTACKS), AttackOptions)


def short_defence(table: Mapping[str, Any]) -> str:
    """Return the short form of the defence section, as `replaced_defence` reads it."""
    return short_form(table, _first_options(DEFENCES), DefenceOptions)


def trust_words(attack: str, defence: str, privacy: str) -> str:
    """Return short forms in words, such as ``attack swap:4, defence peers``; empty for none."""
    sections = {"attack": attack, "defence": defence, "privacy": privacy}
    return ", ".join(f"{name} {form}" for name, form in sections.items() if form != "none")


def _first_options(kinds: Mapping[str, tuple[str, ...]]) -> dict[str, str | None]:
    """Return the option after the colon for every kind."""
    return {kind: names[0] if names else None for kind, names in kinds.items()}
