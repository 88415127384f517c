"""The options of privacy: what the trained model may reveal about a client."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cafedcl.config.kinds import parse_kind, short_form, unused_option
from cafedcl.config.options import option

KINDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "clients": (
        "noise",
        "clip",
        "quantile",
        "samples",
        "prototype",
        "share",
        "floor",
        "delta",
        "budget",
        "accountant",
        "randomness",
        "secure",
    ),
    "records": ("noise", "clip", "delta", "budget", "accountant", "randomness"),
}
"""The kinds of privacy and their options."""


@dataclass(frozen=True)
class PrivacyOptions:
    """Differential privacy."""

    kind: str = option(
        "none",
        "what the model must not reveal. none: no limit; clients: whether a client took part at "
        "all, by noise in the server's sums; records: whether a client has an image, by noise in "
        "every step of its training",
        choices=tuple(KINDS),
    )
    noise: float = option(
        1.0,
        "standard deviation of the noise, in units of the most that one client can add to the "
        "sums, or one image to a step",
        low=0.1,
        high=1000.0,
    )
    clip: float = option(
        1.0,
        "maximum length of a model update, or of one image's gradient; longer ones are clipped",
        above=0.0,
        high=1e6,
    )
    quantile: float = option(
        0.0,
        "adapt clip in every round so that this share of the updates is not clipped; 0: clip "
        "stays as it is",
        low=0.0,
        high=0.99,
    )
    samples: int = option(
        100, "maximum weight of a client in images, where clients are weighted by images", low=1
    )
    prototype: float = option(
        1.0, "maximum length of a prototype; longer ones are clipped", above=0.0, high=1e6
    )
    share: float = option(
        0.3,
        "share of the privacy budget that is spent on prototypes, where a method also averages "
        "models",
        above=0.0,
        high=0.99,
    )
    floor: float = option(
        2.0,
        "a noisy sum of weights counts if it is at least this many standard deviations of its "
        "noise; else the model or the prototype stays as it was",
        low=0.0,
        high=100.0,
    )
    delta: float = option(
        1e-5, "probability δ with which the bound ε may fail", above=0.0, high=0.1
    )
    budget: float = option(
        0.0, "largest ε: the run ends before the round that would exceed it; 0: no limit", low=0.0
    )
    accountant: str = option(
        "rdp",
        "how ε is computed. rdp: Rényi divergences, fast; pld: privacy loss distributions, tighter "
        "but slower",
        choices=("rdp", "pld"),
    )
    randomness: str = option(
        "auto",
        "randomness of noise and participants. seeded: from run.seed, as everything else in a "
        "simulation; system: from the operating system, which is unpredictable. auto: system in a "
        "deployment where sites have data of their own, else seeded",
        choices=("auto", "seeded", "system"),
    )

    secure: bool = option(
        False,
        "flower: secure aggregation, with which the server learns only the sum of the sites' "
        "contributions",
    )

    @property
    def protects_clients(self) -> bool:
        """Whether the server adds noise that hides every client."""
        return self.kind == "clients"

    @property
    def protects_records(self) -> bool:
        """Whether clients add noise to their steps that hides every image."""
        return self.kind == "records"

    def from_system(self, *, own_data: bool) -> bool:
        """Return whether random numbers come from the operating system instead of the seed.

        ``own_data``: sites have data of their own.
        """
        return self.randomness == "system" or (self.randomness == "auto" and own_data)

    def contradiction(self) -> str | None:
        """Return which option this kind of privacy would ignore, or None."""
        if self.secure and self.quantile:
            return (
                f"quantile = {self.quantile:g}: with secure aggregation, sites clip their own "
                "updates and know only privacy.clip; leave it out"
            )
        used = {"kind", *KINDS[self.kind]}
        return unused_option(self, used, KINDS, "privacy", self.kind)


def replaced_privacy(_: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the privacy section for ``clients:1.5`` or ``clients:0.8,budget=8``."""
    return parse_kind("privacy", text, _FIRST, "clients:0.8,budget=8")


def short_privacy(table: Mapping[str, Any]) -> str:
    """Return the short form of the privacy section, as `replaced_privacy` reads it."""
    return short_form(table, _FIRST, PrivacyOptions)


_FIRST = {kind: names[0] if names else None for kind, names in KINDS.items()}


def shown_epsilon(spent: Mapping[str, float]) -> str:
    """Return the privacy in a round's record in words, such as ``ε 2.31``; empty without privacy.

    ε is rounded up, so that it stays a bound.
    """
    if "epsilon" not in spent:
        return ""
    return f"ε {math.ceil(100 * spent['epsilon']) / 100:.2f}"
