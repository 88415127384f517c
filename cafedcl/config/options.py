"""Options as frozen dataclasses: every field has a default, a meaning and limits.

The same declaration gives the config file's keys, the command line's ``--set``, the printed
documentation and the error message for a bad value.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass
from functools import cache
from numbers import Integral
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cafedcl.core.errors import CafedclError, nearest

T = TypeVar("T")
HUGE = 3.4e38
TINY = 1.2e-38
"""The largest and the smallest size of a 32-bit number, rounded inwards."""


@dataclass(frozen=True)
class Limits:
    """Limits of a value: at least, at most, strictly above, one of."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with ``value``, or None."""
        if self.choices and value not in self.choices:
            return nearest(str(value), list(self.choices))
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, str | bool):
                continue
            if not math.isfinite(number):
                return "it must be a finite number"
            if not self._allows(number):
                return f"it must be {self._range()}"
            # Options are used with 32-bit tensors, where such a number would become infinite or 0.
            if isinstance(number, float) and number and not TINY <= abs(number) <= HUGE:
                return f"its size must be between {TINY:g} and {HUGE:g}, or 0"
        return None

    def _allows(self, number: float) -> bool:
        too_low = self.low is not None and number < self.low
        too_high = self.high is not None and number > self.high
        not_above = self.above is not None and number <= self.above
        return not (too_low or too_high or not_above)

    def _range(self) -> str:
        parts = []
        if self.above is not None:
            parts.append(f"greater than {_shown(self.above)}")
        if self.low is not None:
            parts.append(f"at least {_shown(self.low)}")
        if self.high is not None:
            parts.append(f"at most {_shown(self.high)}")
        return " and ".join(parts)

    def __str__(self) -> str:
        parts = []
        if self.choices:
            parts.append(" | ".join(self.choices))
        if self.low is not None:
            parts.append(f"≥ {_shown(self.low)}")
        if self.above is not None:
            parts.append(f"> {_shown(self.above)}")
        if self.high is not None:
            parts.append(f"≤ {_shown(self.high)}")
        return ", ".join(parts)


def _shown(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def option(
    default: T,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    advanced: bool = False,
) -> T:
    """Declare a field of an options dataclass: default, meaning (its help text) and limits.

    An ``advanced`` option is rarely needed: help leaves it out unless asked.
    """
    metadata = {
        "meaning": meaning,
        "limits": Limits(low, high, above, choices),
        "advanced": advanced,
    }
    return dataclasses.field(default=default, metadata=metadata)


def is_hidden(field: "Field[Any]", value: Any) -> bool:
    """Return whether help leaves an option out, because it is advanced and has its default."""
    return bool(field.metadata["advanced"]) and value == field.default


def meaning(field: "Field[Any]") -> str:
    """Return an option's help text, with its limits."""
    limits = str(field.metadata["limits"])
    text = str(field.metadata["meaning"])
    return f"{text} ({limits})" if limits else text


def named_by_meaning(words: str, fields: "Mapping[str, Field[Any]]") -> str:
    """Return "did you mean …?" for an option that is named by words of its help text, such as
    ``learning_rate``; empty if there is none.
    """
    wanted = words.replace("_", " ")
    for name, field in fields.items():
        if " " in wanted and str(field.metadata["meaning"]).startswith(wanted):
            return f"did you mean '{name}'?"
    return ""


@cache
def _type_hints(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a class's fields. Cached: Python evaluates their text at every call."""
    return get_type_hints(cls)


@cache
def _gathered_fields(cls: Any) -> "dict[str, Field[Any]]":
    """Return the fields of a class. Cached: Python gathers them at every call."""
    return {field.name: field for field in dataclasses.fields(cls)}


def fields_by_name(cls: Any) -> "Mapping[str, Field[Any]]":
    """Return the fields of a class of options.

    This wraps the cached function because type checkers consider classes of options unhashable.
    """
    return _gathered_fields(cls)


@cache
def refuse_unreadable(cls: Any, owner: str) -> None:
    """Raise CafedclError for a user's own options that a config could not hold.

    A run writes all options, defaults included, and reads them again when it is used. ``owner`` is
    the class that they belong to, in words.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise CafedclError(f"{owner}: its Options are not a dataclass")
    try:
        hints = _type_hints(cls)
    except (NameError, TypeError) as error:
        raise CafedclError(f"{owner}: a type of its Options cannot be read: {error}") from None
    for field in dataclasses.fields(cls):
        where = f"{owner}: its option '{field.name}'"
        if field.name == "name":
            raise CafedclError(f"{where} has the name of a key that every config has; rename it")
        if "limits" not in field.metadata or field.default is dataclasses.MISSING:
            raise CafedclError(
                f"{where} is not declared with `option`; write {field.name}: float = "
                "option(1.0, 'what it is'), with its own type and default"
            )
        if not _is_readable(hints[field.name]):
            raise CafedclError(
                f"{where}: a config cannot hold its type; int, float, str, bool or a tuple of one "
                "of them is expected, such as tuple[float, ...]"
            )
        value = _fit(hints[field.name], field.default, f"{where}: its default")
        problem = field.metadata["limits"].problem(value)
        if problem:
            raise CafedclError(f"{where}: its default = {to_toml(value)}: {problem}")


def _is_readable(hint: Any) -> bool:
    plain = (int, float, str, bool)
    if get_origin(hint) is tuple:
        kinds = {kind for kind in get_args(hint) if kind is not ...}
        return len(kinds) == 1 and kinds <= set(plain)
    return hint in plain


def read_options(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build options from plain values; a wrong key or value is a CafedclError of one line."""
    fields = fields_by_name(cls)
    hints = _type_hints(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, raw in table.items():
        if key not in fields:
            advice = f"this {where} has no options"
            if fields:
                advice = named_by_meaning(str(key), fields) or nearest(str(key), list(fields))
            raise CafedclError(f"{where}.{key}: there is no such option; {advice}")
        values[key] = _fit(hints[key], raw, f"{where}.{key}")
        problem = fields[key].metadata["limits"].problem(values[key])
        if problem:
            raise CafedclError(f"{where}.{key} = {to_toml(raw)}: {problem}")
    options = cls(**values)
    check_together(options, where)
    return options


def flattened(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options of sections by flat names, such as ``train.lr``."""
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def check_together(options: Any, where: str) -> None:
    """Refuse options that contradict each other.

    A class of options may have a method ``contradiction`` that returns the message, or None.
    """
    contradiction = getattr(options, "contradiction", None)
    problem = contradiction() if contradiction is not None else None
    if problem:
        raise CafedclError(f"{where}.{problem}")


def _fit(hint: Any, raw: Any, where: str) -> Any:
    """Return ``raw`` as the hinted type, or raise an error."""
    if get_origin(hint) is tuple:
        inner, *rest = get_args(hint)
        if not isinstance(raw, list | tuple):
            example = '["a", "b"]' if inner is str else "[1, 2]"
            raise CafedclError(f"{where} = {to_toml(raw)}: a list is expected, such as {example}")
        if rest != [...] and len(raw) != 1 + len(rest):
            raise CafedclError(f"{where} = {to_toml(raw)}: {1 + len(rest)} values are expected")
        return tuple(_fit(inner, value, where) for value in raw)
    # NumPy's numbers become plain ones: users write ``for seed in np.arange(3)``.
    if isinstance(raw, Integral) and not isinstance(raw, bool):
        raw = int(raw)
    elif isinstance(raw, float):
        raw = float(raw)
    if hint is float and type(raw) is int:
        try:
            return float(raw)
        except OverflowError:
            raise CafedclError(f"{where}: the number is too large") from None
    # Neither TOML nor tensors have larger numbers.
    if hint is int and isinstance(raw, int) and abs(raw) >= 2**63:
        raise CafedclError(f"{where}: the number is too large")
    # Not isinstance: True is an int, but not a number here.
    if type(raw) is not hint:
        words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        given = to_toml(raw)
        quoted = f'; put it in quotes: "{given}"' if hint is str and type(raw) in words else ""
        raise CafedclError(f"{where} = {given}: {words[hint]} is expected{quoted}")
    return raw


def to_plain(options: Any) -> dict[str, Any]:
    """Return options as plain values (lists for tuples), ready for TOML or JSON."""
    plain = {name: getattr(options, name) for name in fields_by_name(type(options))}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}


def to_toml(value: Any) -> str:
    """Return one value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON and TOML strings differ only in DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml(str(k))} = {to_toml(v)}" for k, v in value.items()) + "}"
    try:
        return str(value)
    except ValueError:
        # Python refuses to print integers of more than 4300 digits.
        return "a number of thousands of digits"


def parse_value(text: str) -> Any:
    """Return the value of a text: TOML, or the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # Text with a line break could add other keys.
    return parsed["value"] if parsed.keys() == {"value"} else text


def toml_section(
    name: str, options: Any, *, explain: bool = False, advanced: bool = True
) -> list[str]:
    """Return options as a TOML section, with their help texts as comments if ``explain``.

    Without ``advanced``, advanced options that have their default are left out.
    """
    lines = [f"[{name}]"]
    hidden = 0
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if not advanced and is_hidden(field, value):
            hidden += 1
            continue
        if explain:
            lines.append(f"# {meaning(field)}")
        lines.append(f"{field.name} = {to_toml(value)}")
    if hidden and explain:
        lines.append(f"# {hidden} advanced options are not shown; add --advanced to see them")
    return [*lines, ""]
