"""How much privacy the rounds of a run have spent, by the library dp-accounting."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

from cafedcl.config.privacy_options import PrivacyOptions
from cafedcl.core.imports import optional


class Accountant:
    """Computes ε after a number of steps, each with noise on a random part of all members.

    A step is a Gaussian mechanism in which every member takes part with the same probability, and
    two neighbouring populations differ in one member. ε depends only on the number of steps, so a
    resumed run has the same.
    """

    def __init__(self, options: PrivacyOptions, asked: str) -> None:
        self.options = options
        optional("dp_accounting", "privacy", asked)

    def epsilon(self, probability: float, steps: int) -> float:
        """Return ε after a number of steps, each with a member's probability of taking part."""
        options = self.options
        return _epsilon(options.accountant, options.noise, probability, steps, options.delta)


# A value takes up to seconds, and the runs of a comparison ask for the same ones.
@lru_cache(maxsize=10_000)
def _epsilon(kind: str, noise: float, probability: float, steps: int, delta: float) -> float:
    if steps == 0:
        return 0.0
    library: Any = import_module("dp_accounting")
    event = library.GaussianDpEvent(noise)
    if probability < 1:
        event = library.PoissonSampledDpEvent(probability, event)
    classes = {"rdp": "RdpAccountant", "pld": "PLDAccountant"}
    accountant = getattr(import_module(f"dp_accounting.{kind}"), classes[kind])()
    with _quiet():
        accountant.compose(event, steps)
        return float(accountant.get_epsilon(delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the library's warnings about orders that it skips.

    The first warning would also give the root logger a handler, and from then on other libraries'
    messages would be printed.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    root = logging.getLogger()
    handlers = list(root.handlers)
    try:
        yield
    finally:
        logger.setLevel(before)
        root.handlers[:] = handlers
