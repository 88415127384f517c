"""Can probabilities be believed where classes are not equally common, and which class is decided?

    python experiments/probabilities.py --data-dir FOLDER --seeds 3

trains methods on HAM10000, split by its four sources, and writes
experiments/results/probabilities.json: for every method and seed, accuracy and balanced accuracy on
test images if the class with the highest score is taken and if the most probable one is, and the
calibration error before and after calibration on validation images. Small runs, for a CPU.
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import cafedcl
from cafedcl.core.environment import environment

METHODS = ("fedavg", "creff", "spherefed", "cafedcl:best")
SHOWN = (
    "accuracy",
    "balanced",
    "probable_accuracy",
    "probable_balanced",
    "ece",
    "calibrated_ece",
)
SETTINGS = {
    "data.size": 28,
    "data.images": 5000,
    "model.name": "cnn4",
    "model.width": 0.5,
    "train.epochs": 3,
    "evaluate.loop": 0,
    "engine.workers": 1,
    "engine.device": "cpu",
}
RESULT = Path(__file__).parent / "results" / "probabilities.json"


def train(job: tuple[str, int], data_dir: str, rounds: int) -> dict[str, Any]:
    """Train one method with one seed; return the scores of the server's model."""
    method, seed = job
    settings = {**SETTINGS, "data.dir": data_dir, "evaluate.every": rounds}
    settings |= {"evaluate.own_every": rounds, "run.seed": seed}
    run = cafedcl.run(
        method, "ham10000", split="source", rounds=rounds, settings=settings, callbacks=[]
    )
    server = run.records[-1]["server"]
    return {"method": method, "seed": seed, "server": {name: server[name] for name in SHOWN}}


def main() -> None:
    """Run everything and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(METHODS), help="methods, separated by commas")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--data-dir", default="", help="folder with the files of HAM10000")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    jobs = [(method, seed) for seed in range(arguments.seeds) for method in methods]
    work = partial(train, data_dir=arguments.data_dir, rounds=arguments.rounds)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        runs = list(pool.map(work, jobs))
    command = f"python experiments/probabilities.py --seeds {arguments.seeds}"
    if arguments.rounds != parser.get_default("rounds"):
        command += f" --rounds {arguments.rounds}"
    if tuple(methods) != METHODS:
        command += f" --methods {arguments.methods}"
    result = {
        "environment": environment(command.split(), "cpu"),
        "settings": {**SETTINGS, "federation.rounds": arguments.rounds},
        "runs": runs,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for method in methods:
        mine = [run["server"] for run in runs if run["method"] == method]
        print(method, ", ".join(f"{name} {over_seeds(mine, name)}" for name in SHOWN))


def over_seeds(scores: list[dict[str, float]], name: str) -> str:
    """Return mean and standard deviation over seeds, in %."""
    values = [100 * each[name] for each in scores]
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


if __name__ == "__main__":
    main()
