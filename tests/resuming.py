"""Short runs that are stopped and resumed, and what they come to."""

from pathlib import Path
from typing import Any

from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.checkpoint import Checkpoint
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder

ROUNDS = 3


def tables(method: str = "cafedcl") -> dict[str, dict[str, Any]]:
    return {
        "method": {"name": method},
        "data": {"images": 200},
        "model": {"name": "mlp", "width": 0.1},
        "train": {"epochs": 1, "iterations": 1},
        "federation": {"clients": 2, "rounds": ROUNDS},
        # Tests of the recorder resume runs with all scores.
        "evaluate": {"loop": 0, "full": False},
        "engine": {"name": "reference"},
        "store": {"checkpoint_every": 1},
    }


class StopAfter(Callback):
    """Stops a run after the given number of rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_done(self, federation: Federation, record: Record) -> None:
        if record.round + 1 == self.rounds:
            raise StopIteration


def result(path: Path, first: int = 0) -> tuple[Any, ...]:
    """What a run came to, less the seconds: its lines, its last weights, and its evaluations from
    the given round on.
    """
    folder = RunFolder.open(path)
    lines = [{**line, "seconds": None} for line in folder.metrics()]
    saved = Checkpoint.read(folder.checkpoint_file(ROUNDS))
    weights = {name: value.numpy().tobytes() for name, value in saved.tensors.items()}
    tables = [folder.evaluation_file(round).read_bytes() for round in range(first, ROUNDS)]
    return lines, weights, tables
