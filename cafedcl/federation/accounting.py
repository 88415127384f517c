"""How much privacy the rounds of a run have spent, by the library dp-accounting."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from cafedcl.core.imports import optional

PACKAGE = "dp-accounting"


class Accountant:
    """Computes ε after a number of steps, each with noise on a random part of all clients.

    A step is a Gaussian mechanism of which everyone is a part with the same probability, and two
    neighbouring populations differ in one member. ε depends on the number of steps only, so a
    resumed run has the same.
    """

    def __init__(self, kind: str, noise: float, probability: float, delta: float, asked: str):
        self.kind = kind
        self.delta = delta
        self.library = optional("dp_accounting", PACKAGE, asked)
        self.accountants = optional(f"dp_accounting.{kind}", PACKAGE, asked)
        event: Any = self.library.GaussianDpEvent(noise)
        if probability < 1:
            event = self.library.PoissonSampledDpEvent(probability, event)
        self.event = event
        self.epsilon = lru_cache(maxsize=8)(self._epsilon)
        """Returns ε after a number of steps."""

    def _epsilon(self, steps: int) -> float:
        if steps == 0:
            return 0.0
        classes = {"rdp": "RdpAccountant", "pld": "PLDAccountant"}
        accountant = getattr(self.accountants, classes[self.kind])()
        with _quiet():
            accountant.compose(self.event, steps)
            return float(accountant.get_epsilon(self.delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the library's warnings of orders that it does without."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
