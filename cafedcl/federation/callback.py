"""What callbacks of a run receive: the record of a round, and the events of a federation."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from cafedcl.core.contract import Failure
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors
from cafedcl.functional.metrics import Scores

if TYPE_CHECKING:
    from cafedcl.federation.rounds import Federation


@dataclass
class Record:
    """What happened in one round.

    ``seconds`` is the only part that differs between two runs with the same seed.
    """

    round: int
    status: str
    participants: list[int]
    dropped: list[int]
    failed: list[dict[str, Any]]
    traffic: dict[str, int]
    lr: float
    loss: dict[str, float]
    left_out: list[int] = field(default_factory=list)
    """Clients whose replies were valid but left out by the defence."""
    server: Scores | None = None
    own: Scores | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    privacy: dict[str, float] = field(default_factory=dict)
    """The privacy budget that the rounds so far have spent; empty without privacy."""
    reason: str = ""
    """Why the round was skipped, leaving the server's state as it was; empty if it was not."""
    tables: Tensors = field(default_factory=dict)
    """Per-client and per-class results behind the scores; kept in `evaluations/` only."""

    def line(self) -> dict[str, Any]:
        """Return the record as plain values, without the tables."""
        names = [entry.name for entry in fields(self) if entry.name != "tables"]
        return {name: getattr(self, name) for name in names}


class Callback:
    """Observes a federation. Override any event; none is required."""

    def began(self, federation: "Federation") -> None:
        """Everything is loaded, and the first round of this process is about to begin."""

    def noticed(self, federation: "Federation", message: str) -> None:
        """Something differs from the request, and the run continues."""

    def round_began(self, federation: "Federation", clients: int) -> None:
        """A round has sampled its clients."""

    def client_done(self, federation: "Federation", client: int, failure: Failure | None) -> None:
        """A client has replied, or failed."""

    def round_done(self, federation: "Federation", record: Record) -> None:
        """A round is over; the federation's state is the new one."""


class StoppedByCallback(Exception):  # noqa: N818
    """A callback has ended the run.

    It raised StopIteration, which any other code may raise by mistake.
    """


EVENTS = [name for name in vars(Callback) if not name.startswith("_")]
ALIKE = 0.7
"""Similarity above which the name of a method is treated as a misspelt event."""


def check_events(callback: Callback) -> None:
    """Refuse a method whose name is nearly that of an event: it would never be called."""
    for cls in type(callback).__mro__:
        for name, value in vars(cls).items():
            # Looked up in the class: a property of the object may need what does not exist yet.
            if name in EVENTS or name.startswith("_") or not callable(value):
                continue
            close = get_close_matches(name, EVENTS, n=1, cutoff=ALIKE)
            if close:
                raise CafedclError(
                    f"{cls.__name__}.{name}: there is no such event; did you mean '{close[0]}'? "
                    f"If it is not an event, begin its name with an underscore. Events are "
                    f"{', '.join(EVENTS)}"
                )


def notify(
    callbacks: Iterable[Callback], event: str, federation: "Federation", *details: Any
) -> None:
    """Notify every callback of an event."""
    for callback in callbacks:
        try:
            getattr(callback, event)(federation, *details)
        except StopIteration as stop:
            raise StoppedByCallback from stop
