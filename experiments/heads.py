"""The server's fitted classifier and rare classes, on held-out images.

    python experiments/heads.py --data-dir FOLDER --seeds 2 --jobs 2

trains `cafedcl:best` in every setting of the study of long tails, with a tenth of the training
images held out. How the classifier is fitted changes nothing in the training. So afterwards it is
fitted to the features of the same encoder in many ways: with several exponents η of `rare_gain`,
with several λ of `ridge`, and after some turns of the loop that equalises recalls (recall_loop.py).
Scores are balanced accuracies on the held-out images, and for the loop also the standard deviation
between clients; test images are not used. The results, experiments/results/heads.json, grow run by
run.

With --features FOLDER, the features of every run are kept, so that other classifiers can be fitted
to them: FOLDER/SETTING-SEED.npz.
"""

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from growing import GrowingResult, cell
from recall_loop import offsets_after, recalls, spread
from torch import Tensor

import cafedcl
from cafedcl.compare.held_out import HELD_OUT, write_held_out
from cafedcl.compare.study import StudySetting, read_scales, read_study
from cafedcl.config.split_options import parse_split
from cafedcl.federation.result import Run
from cafedcl.functional import ridge
from cafedcl.functional.contrast import unit
from cafedcl.task.build import prepare

RESULT = Path(__file__).parent / "results" / "heads.json"
STUDY = "long_tail"
METHOD = "cafedcl:best"
HOLD_OUT = 0.1
GAINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
RIDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
TURNS = (0, 2, 5, 10, 30, 100)
USUAL_GAIN = 0.3
USUAL_RIDGE = 0.003
BATCH = 500


class Key(NamedTuple):
    """One run."""

    setting: str
    seed: int


class Features(NamedTuple):
    """Unit features of images, and their labels."""

    z: Tensor
    y: Tensor


def settings_of(scale: str) -> dict[str, StudySetting]:
    """Return the settings of the study at a scale, by name."""
    return {one.name: one for one in read_study(STUDY).at(read_scales()[scale]).settings}


def run_one(scale: str, folder: str, device: str, kept: Path | None, key: Key) -> dict[str, Any]:
    """Train once; return the scores of classifiers that are fitted in different ways."""
    setting = settings_of(scale)[key.setting]
    options = {**setting.options, **read_study(STUDY).each.get(METHOD, {})}
    # It has no generator, whose options a scale may have.
    options = {name: it for name, it in options.items() if not name.startswith("augment.")}
    data = {"name": setting.data, "dir": folder, "images": options.pop("data.images", 0)}
    rounds = options["federation.rounds"]
    with tempfile.TemporaryDirectory(prefix="cafedcl-") as place:
        write_held_out(Path(place), {"data": data, "split": parse_split(setting.split)}, HOLD_OUT)
        run = cafedcl.run(
            METHOD,
            data=Path(place) / HELD_OUT,
            split=setting.split,
            seed=key.seed,
            device=device,
            settings={
                **options,
                "evaluate.every": rounds,
                "evaluate.own_every": rounds,
                "engine.workers": 1,
            },
        )
        trained, validation, held_out = features_of(run)
    anchors = run.prototypes
    assert anchors is not None
    if kept is not None:
        keep(kept / f"{key.setting}-{key.seed}.npz", (trained, validation, held_out), anchors)
    counts = torch.bincount(trained.y, minlength=len(anchors))
    return {
        **key._asdict(),
        "counts": counts.tolist(),
        "by_gain": {str(gain): score(trained, held_out, anchors, gain) for gain in GAINS},
        "by_ridge": {
            str(weight): score(trained, held_out, anchors, USUAL_GAIN, weight) for weight in RIDGES
        },
        "by_turns": equalised(trained, validation, held_out, anchors, shares_of(run)),
        "validation": mean_scores(trained, validation, anchors),
    }


def keep(file: Path, parts: tuple[Features, Features, Features], anchors: Tensor) -> None:
    """Write features in half precision, labels and anchors."""
    arrays: dict[str, Any] = {"anchors": anchors.numpy()}
    for name, part in zip(("train", "validation", "held_out"), parts, strict=True):
        arrays |= {f"z_{name}": part.z.half().numpy(), f"y_{name}": part.y.numpy()}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)


def features_of(run: Run) -> tuple[Features, Features, Features]:
    """Return the features of clients' training and validation images, and of held-out images."""
    task = prepare(run.config).task
    data = task.clients.data
    network = run.network().to(task.device)
    network.eval()

    def features(images: Tensor, labels: Tensor) -> Features:
        with torch.no_grad():
            parts = [unit(network.features(data.images(x))).cpu() for x in images.split(BATCH)]
        return Features(torch.cat(parts).double(), labels.cpu())

    parts = (task.clients.shards.train, task.clients.shards.validation)
    train, validation = (
        features(data.train_x[part.indices], data.train_y[part.indices]) for part in parts
    )
    return train, validation, features(data.test_x, data.test_y)


def classifier(trained: Features, anchors: Tensor, gain: float, weight: float) -> Tensor:
    """Return the classifier that all clients' features give."""
    total = torch.bincount(trained.y, minlength=len(anchors)).double()
    targets = ridge.rare_targets(total, gain)
    sums = ridge.moments(trained.z, trained.y, 1 / total.clamp_min(1), targets)
    return ridge.fitted(sums, weight, anchors.double()).double()


def score(
    trained: Features, other: Features, anchors: Tensor, gain: float, weight: float = USUAL_RIDGE
) -> float:
    """Return the balanced accuracy on other images, in %."""
    found = recalls(other.z @ classifier(trained, anchors, gain, weight).T, other.y)
    return round(100 * float(found.nanmean()), 2)


def shares_of(run: Run) -> Tensor:
    """Return the class frequencies of each client, (clients, classes)."""
    counts = torch.as_tensor(run.counts).double()
    return counts / counts.sum(1, keepdim=True)


def equalised(
    trained: Features, validation: Features, other: Features, anchors: Tensor, shares: Tensor
) -> dict[str, list[float]]:
    """Return balanced accuracy and standard deviation between clients on other images, in %, by the
    number of turns of the loop on validation images.
    """
    w = classifier(trained, anchors, USUAL_GAIN, USUAL_RIDGE).T
    scores = other.z @ w
    found: dict[str, list[float]] = {}
    for turns in TURNS:
        its = recalls(scores + offsets_after(validation.z @ w, validation.y, turns), other.y)
        found[str(turns)] = [
            round(100 * value, 2) for value in (float(its.mean()), spread(its, shares))
        ]
    return found


def mean_scores(trained: Features, other: Features, anchors: Tensor) -> list[float | None]:
    """Return how high images of each class score for their own class, on average; without a gain,
    training images score about 1.
    """
    scores = other.z @ classifier(trained, anchors, 0.0, USUAL_RIDGE).T
    return [
        round(float(scores[other.y == c, c].mean()), 3) if (other.y == c).any() else None
        for c in range(len(anchors))
    ]


def keys(names: list[str], seeds: int) -> Iterator[Key]:
    """Yield all runs, one seed after the other."""
    for seed in range(seeds):
        for name in names:
            yield Key(name, seed)


def table(result: GrowingResult[Key], name: str, values: tuple[float, ...], title: str) -> str:
    """Return a row per setting: its scores for each value of what was changed."""
    lines = [f"| setting | {' | '.join(title.format(value) for value in values)} |"]
    lines.append("|---" * (len(values) + 1) + "|")
    for setting in dict.fromkeys(row["setting"] for row in result.rows):
        mine = [row[name] for row in result.rows if row["setting"] == setting]
        cells = [shown([its[str(value)] for its in mine]) for value in values]
        lines.append(f"| `{setting}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(found: list[Any]) -> str:
    """Return the mean of scores over seeds; of lists of scores, that of each."""
    if isinstance(found[0], list):
        return " / ".join(cell(list(scores)) for scores in zip(*found, strict=True))
    return cell(found)


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", default="short", help="a scale of `cafedcl reproduce`")
    parser.add_argument("--data-dir", default="", help="folder with data files")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT, help="the result file")
    parser.add_argument("--features", type=Path, help="a folder to keep all features in")
    parser.add_argument("--read", action="store_true", help="only print the tables")
    given = parser.parse_args()
    about = {"study": STUDY, "method": METHOD, "scale": given.scale, "hold_out": HOLD_OUT}
    result = GrowingResult(given.out, Key, about)
    if not given.read:
        run = partial(run_one, given.scale, given.data_dir, given.device, given.features)
        result.run_missing(keys(list(settings_of(given.scale)), given.seeds), run, given.jobs)
    print("balanced accuracy on held-out images, %\n")
    print(table(result, "by_gain", GAINS, "η = {:g}"), "", sep="\n")
    print(table(result, "by_ridge", RIDGES, "λ = {:g}"), "", sep="\n")
    print("the same / standard deviation between clients, %\n")
    print(table(result, "by_turns", TURNS, "{} turns"))


if __name__ == "__main__":
    main()
