"""How close the anchors of different classes are, round by round, in several variants of CAFedCL.

    python experiments/anchors.py --out experiments/results/anchors.json

trains CAFedCL on 5,000 images of CIFAR-10 (Dirichlet 0.1, 20 clients, four-layer CNN, two local
epochs). Anchors are averaged in every round, from features after or before the last ReLU, or moved
apart by the server, or fixed. The file has the mean cosine between the anchors of two classes and
the accuracy of the server's model in every round. Variants that the file already has are not run
again.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from cafedcl.core.environment import environment
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation
from cafedcl.task.resolve import resolve

READINGS: dict[str, dict[str, Any]] = {
    "averaged": {},
    "averaged, before the ReLU": {"features": "pre-relu"},
    "averaged, moved apart": {"geo": "server", "prior": "orthogonal"},
    "fixed": {"anchors": "fixed"},
}
IMAGES = 5000
EPOCHS = 2


class AnchorRecorder(Callback):
    """Records how close the anchors are, and the accuracy, after every round."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def round_done(self, federation: Federation, record: Record) -> None:
        """Record a round."""
        assert record.server is not None
        mean_cosine = cosine(federation.state["anchors/prototypes"])
        accuracy = float(record.server["accuracy"])
        self.rows.append({"cosine": round(mean_cosine, 4), "accuracy": round(accuracy, 4)})


def cosine(anchors: torch.Tensor) -> float:
    """Return the mean cosine between two classes' anchors."""
    p = F.normalize(anchors.double(), dim=1)
    others = ~torch.eye(len(p), dtype=torch.bool, device=p.device)
    return float((p @ p.T)[others].mean())


def run(
    options: dict[str, Any], rounds: int, seed: int, data: dict[str, Any]
) -> list[dict[str, float]]:
    """Train one run and return its rows."""
    tables = {
        "method": {"name": "cafedcl", **options},
        "data": {"name": "cifar10", "images": IMAGES, **data},
        "run": {"seed": seed},
        "split": {"kind": "dirichlet", "alpha": 0.1},
        "model": {"name": "cnn4"},
        "train": {"epochs": EPOCHS},
        "federation": {"rounds": rounds},
        "evaluate": {"own_every": rounds, "loop": 0},
    }
    recorder = AnchorRecorder()
    with Federation(resolve(tables), [recorder]) as federation:
        federation.run()
    return recorder.rows


def earlier(path: Path, same: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Return the rows of an existing file with the same settings, else nothing."""
    if not path.is_file():
        return {}
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if any(result.get(name) != value for name, value in same.items()):
        return {}
    rows: dict[str, list[dict[str, float]]] = result["rounds"]
    return rows


def main() -> None:
    """Run every variant and write the file after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "anchors.json"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", default="", help="folder with data files")
    arguments = parser.parse_args()
    data = {"dir": arguments.data_dir} if arguments.data_dir else {}
    command = ["python", "experiments/anchors.py"]
    command += ["--rounds", str(arguments.rounds), "--seed", str(arguments.seed)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    same = {"images": IMAGES, "epochs": EPOCHS, "seed": arguments.seed}
    known = earlier(arguments.out, same)
    result: dict[str, Any] = {**same, "rounds": {}}
    try:
        for name, options in READINGS.items():
            rows = known.get(name, [])
            if len(rows) != arguments.rounds:
                rows = run(options, arguments.rounds, arguments.seed, data)
            result["rounds"][name] = rows
            result["environment"] = environment(command, device)
            write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
            print(name, rows[-1], flush=True)
    except CafedclError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
