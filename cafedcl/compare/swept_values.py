"""The values and ranges of a sweep, as they are written on the command line."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cafedcl.compare.plan import Tables
from cafedcl.config.options import to_toml
from cafedcl.config.sections import assign
from cafedcl.core.errors import CafedclError


@dataclass(frozen=True)
class Range:
    """A range that a search draws numbers from, on a linear or logarithmic scale."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool

    @classmethod
    def parse(cls, name: str, text: str, whole: bool) -> "Range":
        """Read ``0.05..0.5`` or ``0.05..0.5:log``."""
        asked = f"--range {name}={text}"
        bounds, colon, scale = text.partition(":")
        low, dots, high = bounds.partition("..")
        if not dots or (colon and scale != "log"):
            raise CafedclError(
                f"{asked}: low..high or low..high:log is expected, such as {name}=0.05..0.5:log"
            )
        kind = int if whole else float
        try:
            first = kind(low)
            last = kind(high)
        except ValueError:
            numbers = "whole numbers" if whole else "numbers"
            raise CafedclError(
                f"{asked}: {numbers} are expected on both sides of the dots"
            ) from None
        if not (math.isfinite(first) and math.isfinite(last) and first < last):
            raise CafedclError(f"{asked}: the first number must be smaller than the second")
        if colon and first <= 0:
            raise CafedclError(f"{asked}: with :log, both numbers must be greater than 0")
        return cls(name, first, last, bool(colon), whole)


def parse_values(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Return the values of every ``section.key=value,value,…``."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not (equals and values.strip() and all(name.partition("."))):
            raise CafedclError(
                f"{option} {text}: section.key=value,value is expected, such as train.lr=0.01,0.1"
            )
        if name in found:
            raise CafedclError(f"{option} {name}: it is given twice")
        found[name] = []
        for value in separated(values):
            tables: Tables = {}
            assign(tables, f"{name}={value}")
            section, _, key = name.partition(".")
            if to_toml(tables[section][key]) in map(to_toml, found[name]):
                raise CafedclError(f"{option} {text}: {value} is given twice")
            found[name].append(tables[section][key])
    return found


def separated(text: str) -> list[str]:
    """Split a text at commas outside of brackets."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def parse_ranges(texts: Iterable[str]) -> dict[str, Any]:
    """Return the range of every ``section.key=low..high``."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, bounds = text.partition("=")
        if not (equals and all(name.strip().partition("."))):
            raise CafedclError(
                f"--range {text}: section.key=low..high is expected, such as train.lr=0.01..0.3:log"
            )
        if name.strip() in found:
            raise CafedclError(f"--range {name.strip()}: it is given twice")
        found[name.strip()] = bounds.strip()
    return found
