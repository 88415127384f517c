"""metrics.jsonl: one line per round, flushed as it happens, and checked when it is read."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cafedcl.core.files import append_line, write_atomically

METRICS = "metrics.jsonl"

MetricsLine = dict[str, Any]
"""A line of metrics.jsonl: what is recorded of one round."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_clients(value: object) -> bool:
    return isinstance(value, list) and all(type(client) is int for client in value)


def _are_failures(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and type(one.get("client")) is int and _is_text(one.get("reason"))
        for one in value
    )


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(number) for number in value.values())


def _is_traffic(value: object) -> bool:
    return (
        _are_numbers(value) and isinstance(value, dict) and {"up_bytes", "down_bytes"} <= {*value}
    )


def _are_scores(value: object) -> bool:
    """A score is null where no class or client counts towards it."""
    if value is None:
        return True
    return isinstance(value, dict) and all(
        score is None or _is_number(score) for score in value.values()
    )


ENTRIES: Mapping[str, Callable[[object], bool]] = {
    "round": lambda value: type(value) is int,
    "status": lambda value: value in ("ok", "skipped"),
    "participants": _are_clients,
    "dropped": _are_clients,
    "failed": _are_failures,
    "left_out": _are_clients,
    "traffic": _is_traffic,
    "lr": _is_number,
    "loss": _are_numbers,
    "server": _are_scores,
    "own": _are_scores,
    "seconds": _are_numbers,
    "privacy": _are_numbers,
    "reason": _is_text,
}
"""The entries of a line, and what each must be."""
OPTIONAL = {"reason", "left_out", "privacy"}
"""Entries that lines of earlier versions do not have."""


def on_most_clients(lines: Sequence[MetricsLine]) -> list[MetricsLine]:
    """Return the rounds with the server's model scored on the most clients.

    Where a site gave no scores, the others' scores are on fewer images. The best round must not be
    one in which the hardest images were missing.
    """
    missing = [(line["server"] or {}).get("client_missing") or 0 for line in lines]
    fewest = min(missing, default=0)
    return [line for line, number in zip(lines, missing, strict=True) if number == fewest]


@dataclass(frozen=True)
class MetricsRead:
    """The rounds that can be read, up to the first damaged line."""

    lines: list[MetricsLine]
    problem: str = ""
    """Which line is damaged and why; a last line cut off by a crash does not count as damaged."""


class MetricsFile:
    """The metrics of a run, in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def read(self) -> MetricsRead:
        """Return the rounds up to the first damaged line."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return MetricsRead([])
        except OSError as error:
            return MetricsRead([], f"{self.path}: cannot be read: {error.strerror}")
        # A line without its end was being written when the process was killed.
        *whole, _ = content.split(b"\n")
        lines: list[MetricsLine] = []
        for number, text in enumerate(whole):
            try:
                lines.append(parse_line(text, number))
            except ValueError as error:
                return MetricsRead(lines, f"{self.path}, line {number + 1}: {error}")
        return MetricsRead(lines)

    def append(self, line: MetricsLine) -> None:
        """Add a round."""
        append_line(self.path, json.dumps(line))

    def write(self, lines: Sequence[MetricsLine]) -> None:
        """Replace the content of the file with the given rounds."""
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if not self.path.exists() or self.path.read_bytes() != content:
            write_atomically(self.path, content)


def last_round(lines: Sequence[MetricsLine], rounds: int, budget: float | None = None) -> int:
    """Return the number of rounds of a finished run.

    It is the number in its config, or less if the privacy budget allows no more. The ``budget`` is
    the recorded one, unless the config has another by now (0: there is none).
    """
    spent = lines[-1].get("privacy", {}) if lines else {}
    budget = spent.get("budget", 0.0) if budget is None else budget
    if budget and spent.get("next_epsilon", 0.0) > budget:
        return min(rounds, len(lines))
    return rounds


def parse_line(text: bytes, number: int) -> MetricsLine:
    """Return a line of metrics; raises ValueError if it is not the record of that round."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(line, dict):
        raise ValueError("it is not the record of a round")  # noqa: TRY004
    for name, fits in ENTRIES.items():
        if name not in line and name not in OPTIONAL:
            raise ValueError(f"it has no '{name}'")
        if name in line and not fits(line[name]):
            raise ValueError(f"its '{name}' is not what is expected there")
    unknown = line.keys() - ENTRIES.keys()
    if unknown:
        raise ValueError(f"it has an unknown entry '{min(unknown)}'")
    if line["round"] != number:
        raise ValueError(f"it records round {line['round']}, not {number}")
    return line
