"""Is CAFedCL fairer than FedAvg on the digits, and do both beat training alone?

    python experiments/digits.py --seeds 5 --rounds 30 --jobs 2

trains every method with every seed on the embedded digits (20 clients, Dirichlet 0.1, all
defaults), and writes experiments/results/digits.json: the scores of the last round of every run,
and paired tests over the seeds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import ttest_rel, wilcoxon

from cafedcl.core.environment import environment

METHODS = (
    "local",
    "central",
    "fedavg",
    "fedprox",
    "moon",
    "fedproto",
    "fedrcl",
    "fedproc",
    "fedlc",
    "mp-fedcl",
    "fedtgp",
    "scaffold",
    "fednh",
    "cafedcl",
)
SHOWN = (
    "server.accuracy",
    "server.client_std",
    "own.client_mean",
    "own.client_std",
    "own.accuracy",
)
RESULT = Path(__file__).parent / "results" / "digits.json"


def train(method: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one method with one seed in its own process, and return the last round's scores."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cafedcl", "run", "--method", method, "--seed", str(seed)]
        command += ["--rounds", str(arguments.rounds), "--device", arguments.device]
        command += ["--out", f"{folder}/run", "--quiet"]
        for setting in ["engine.workers=1", *arguments.settings]:
            command += ["--set", setting]
        subprocess.run(command, check=True)
        records = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        last = json.loads(records[-1])
    return {"method": method, "seed": seed, "server": last["server"], "own": last["own"]}


def paired(
    runs: list[dict[str, Any]], better: str, worse: str, score: tuple[str, str]
) -> dict[str, Any]:
    """Compare two methods over the seeds by one-sided paired t and Wilcoxon tests."""
    section, key = score
    values = {
        method: [run[section][key] for run in runs if run["method"] == method]
        for method in (better, worse)
    }
    differences = [a - b for a, b in zip(values[better], values[worse], strict=True)]
    side = "less" if key == "client_std" else "greater"
    return {
        "score": f"{section}.{key}",
        "claim": f"{better} {'<' if side == 'less' else '>'} {worse}",
        "mean_difference": sum(differences) / len(differences),
        "paired_t_p": float(ttest_rel(values[better], values[worse], alternative=side).pvalue),
        "wilcoxon_p": float(wilcoxon(differences, alternative=side).pvalue),
    }


def over_seeds(runs: list[dict[str, Any]], section: str, key: str) -> str:
    """Return mean ± standard deviation over the seeds, in percent."""
    values = [100 * run[section][key] for run in runs if run[section]]
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else "–"


def main() -> None:
    """Run everything and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS), help="methods, separated by commas")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as in `cafedcl run --set`"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    jobs = [(method, seed) for seed in range(arguments.seeds) for method in methods]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = list(pool.map(lambda job: train(*job, arguments), jobs))
    claims = [
        ("cafedcl", "fedavg", ("server", "accuracy")),
        ("cafedcl", "fedavg", ("server", "client_std")),
        ("cafedcl", "fedavg", ("own", "client_std")),
        ("cafedcl", "cafedcl:no-confagg-counts", ("server", "accuracy")),
        ("cafedcl", "cafedcl:no-confagg-counts", ("server", "client_std")),
    ]
    tests = [paired(runs, *claim) for claim in claims if {claim[0], claim[1]} <= set(methods)]
    command = f"python experiments/digits.py --seeds {arguments.seeds} --rounds {arguments.rounds}"
    if tuple(methods) != METHODS:
        command += f" --methods {arguments.methods}"
    command += "".join(f" --set {setting}" for setting in arguments.settings)
    about = environment(command.split(), arguments.device)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(
        json.dumps({"environment": about, "tests": tests, "runs": runs}, indent=1) + "\n"
    )
    for method in methods:
        mine = [run for run in runs if run["method"] == method]
        print(
            f"{method:16s}  "
            + "  ".join(f"{path} {over_seeds(mine, *path.split('.'))}" for path in SHOWN)
        )
    for test in tests:
        print(test)


if __name__ == "__main__":
    main()
