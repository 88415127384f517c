"""Plans, runs and pools for tests of many runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cafedcl.compare.jobs import DeviceShare, RunOutcome, RunSpec
from cafedcl.compare.plan import Comparison
from cafedcl.compare.pool import Pool, View, polite, run_all
from cafedcl.compare.processes import LocalLauncher
from cafedcl.federation.callback import Record
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.functional.ranking import RANKED

Notes = Callable[[], list[list[Any]]]
"""Returns what the stubs of runs noted: start or end, command, folder, time, process."""


def scored_line(round: int, scores: dict[str, Any] | None) -> MetricsLine:
    """A line of metrics with scores of the server's model."""
    traffic = {"up_bytes": 1, "down_bytes": 1}
    return {**Record(round, "ok", [0], [], [], traffic, 0.1, {}).line(), "server": scores}


def wherever(line: MetricsLine) -> MetricsLine:
    """Return a round without what depends on where the clients are.

    Seconds differ always, and the server cannot score the probabilities of an own model that stays
    at its site.
    """
    full = (*RANKED, "macro_f1", "ece")
    own = line["own"] and {name: v for name, v in line["own"].items() if name not in full}
    return {**line, "seconds": 0, "own": own}


def plan(**changes: Any) -> Comparison:
    asked: dict[str, Any] = {
        "methods": ["fedavg", "cafedcl"], "data": [], "splits": [], "seeds": 1, "first_seed": 0,
        "tables": {}, "settings": ["federation.rounds=3"],
    }  # fmt: skip
    return Comparison.make(**(asked | changes))


def jobs(out: Path, number: int = 2) -> list[RunSpec]:
    return plan(methods=["fedavg"], seeds=number).jobs(out)


def pool(slots: int = 2, view: View | None = None) -> Pool:
    return Pool(LocalLauncher([DeviceShare("cpu")] * slots), view or View())


def outcomes_of(work: list[RunSpec], slots: int = 2, view: View | None = None) -> list[RunOutcome]:
    """Execute runs, and end the processes that they ran in."""
    crowd = pool(slots, view)
    with polite(crowd):
        return run_all(work, crowd)
