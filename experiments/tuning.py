"""The same tuning budget for every method.

    python experiments/tuning.py --out runs/tuning --jobs 4

runs all candidates of all methods in experiments/tuning.toml, the same number for each, and writes
OUT/tuning.json: every candidate's score, and the best candidate per method. A score is a mean over
settings (data sets and splits) and seeds, measured on training images that are held out; the test
set is not used.

The same command resumes an interrupted tuning and runs candidates that were added. `--from
tuning.json` uses the scores of an earlier result with the same settings, so that only other
candidates are run. `--study cafedcl/compare/studies/tuned.toml` runs nothing: from the result
that --from names, it writes the study in which every method has the options of its best candidate.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tuning_study import study_of

from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.compare.plan import words_of
from cafedcl.compare.pool import run_all
from cafedcl.compare.run import Means, end, fetch_data, scheduled
from cafedcl.compare.study import build_from_table
from cafedcl.compare.sweep import Point, Sweep, sweep_settings
from cafedcl.config.options import flattened, to_toml
from cafedcl.config.sections import read_file
from cafedcl.core.environment import environment
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.files import write_atomically
from cafedcl.core.slug import slug
from cafedcl.federation.run_folder import RunFolder

PLAN = Path(__file__).with_name("tuning.toml")
RESULT = "tuning.json"
SHARED = "shared.json"
ENTRIES = ("settings", "hold_out", "score", "study", "options", "scores", "candidates")


@dataclass(frozen=True)
class TuningSetting:
    """A data set and a split in which all candidates are scored."""

    data: str
    split: str

    def folder(self, out: Path) -> Path:
        """Return the folder of the data set's runs and held-out images."""
        return out / slug(self.data)


@dataclass(frozen=True)
class Tuning:
    """A plan: where candidates are scored, and the candidates of every method."""

    settings: list[TuningSetting]
    hold_out: float
    score: str
    study: dict[str, Any]
    """Title, description and settings of the study of the best candidates."""
    options: dict[str, Any]
    scores: dict[str, str]
    candidates: dict[str, list[Point]]

    @classmethod
    def read(cls, path: Path) -> "Tuning":
        """Read a plan; every method must have the same number of candidates."""
        table = read_file(path)
        for name in {*table} ^ {*ENTRIES}:
            what = "there is no such entry" if name in table else "it is missing"
            raise CafedclError(f"{path}: {name}: {what}; a plan has {', '.join(ENTRIES)}")
        settings = [
            build_from_table(TuningSetting, one, f"{path}: settings") for one in table["settings"]
        ]
        plan = cls(**{**table, "settings": settings})
        if not plan.candidates:
            raise CafedclError(f"{path}: candidates: there are none")
        sizes = {name: len(points) for name, points in plan.candidates.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise CafedclError(
                f"{path}: every method must have the same number of candidates ({listed})"
            )
        for name, points in plan.candidates.items():
            if len({named(point) for point in points}) < len(points):
                raise CafedclError(f"{path}: candidates: {name}: one of them appears twice")
        for name in plan.scores:
            if name not in plan.candidates:
                raise CafedclError(
                    f"{path}: scores: {name}: {nearest(name, list(plan.candidates))}"
                )
        return plan

    @property
    def budget(self) -> int:
        """The number of candidates of every method."""
        return len(next(iter(self.candidates.values())))

    def shared(self, settings: Sequence[str]) -> list[str]:
        """Return the options of all runs, as for --set."""
        return [*(f"{name}={to_toml(value)}" for name, value in self.options.items()), *settings]

    def sweep(
        self, method: str, where: TuningSetting, seeds: int, settings: Sequence[str]
    ) -> Sweep:
        """Return a method's runs in one setting as a sweep; its points are the candidates."""
        return Sweep(
            settings=sweep_settings(
                {},
                {"method": method, "data": where.data, "split": where.split},
                self.shared(settings),
            ),
            seeds=seeds,
            first_seed=0,
            score=self.scores.get(method, self.score),
            on="validation",
            hold_out=self.hold_out,
            grid={},
            ranges={},
            choices={},
            prune=False,
        )

    def jobs(
        self, out: Path, method: str, sweeps: Mapping[TuningSetting, Sweep]
    ) -> list[tuple[Point, list[RunSpec]]]:
        """Return a method's candidates, each with a run per setting and seed."""
        found = []
        for point in self.candidates[method]:
            runs: list[RunSpec] = []
            for where, sweep in sweeps.items():
                place = f"{slug(where.split)}/{slug(method)}/{sweep.place(point) or 'defaults'}"
                try:
                    runs += sweep.jobs(where.folder(out), place, point)
                except CafedclError as error:
                    raise CafedclError(f"{method}: {error}") from None
            found.append((point, runs))
        return found


@contextmanager
def held(out: Path, shared: dict[str, Any]) -> Iterator[None]:
    """Lock the folder; a folder with runs of other shared options is refused."""
    path = out / SHARED
    text = json.dumps(shared, indent=1) + "\n"
    with RunFolder(out).held():
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            raise CafedclError(
                f"{out}: its runs share other options, see {path}; choose another --out"
            )
        write_atomically(path, text.encode())
        yield


def run(jobs: Sequence[RunSpec], number: int | None, quiet: bool) -> list[RunOutcome]:
    """Run the unfinished jobs, ``number`` at a time."""
    size = (len(jobs), sum(job.rounds for job in jobs))
    settings = flattened(jobs[0].tables) if jobs else {}
    with scheduled("the same command", size, settings, Means(number, quiet=quiet)) as pool:
        return run_all(jobs, pool)


@dataclass(frozen=True)
class Earlier:
    """An earlier result: the scores of candidates that need not run again, and its machines."""

    values: dict[tuple[str, str], list[float]]
    environments: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path | None, same: dict[str, Any], scores: Mapping[str, str]) -> "Earlier":
        """Read a result; a result with other settings or other scores is refused."""
        if path is None:
            return cls({}, [])
        try:
            result = read_result(path)
            for name, value in same.items():
                if result[name] != value:
                    raise CafedclError(f"--from {path}: its {name} was {result[name]}, not {value}")
            values = {}
            for method, it in result["methods"].items():
                if it["score"] != scores.get(method, it["score"]):
                    raise CafedclError(
                        f"--from {path}: {method} was scored by {it['score']}, not by "
                        f"{scores[method]}"
                    )
                for row in it["candidates"]:
                    if row["value"] is not None:
                        values[method, named(row["options"])] = row["values"]
            return cls(values, [*result.get("earlier", []), result["environment"]])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CafedclError(
                f"--from {path}: it is not a result of this tuning ({error!r})"
            ) from None

    def has(self, method: str, point: Point) -> bool:
        """Return whether a candidate's score is known."""
        return (method, named(point)) in self.values


def read_result(path: Path) -> dict[str, Any]:
    """Return the content of a result file."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CafedclError(f"--from {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise CafedclError(f"--from {path}: it is not a result of this tuning") from None
    return result


def named(point: Point) -> str:
    """Return a unique name of a candidate among those of its method."""
    return json.dumps(point, sort_keys=True)


def scored(
    method: str, sweep: Sweep, candidates: Sequence[tuple[Point, list[RunSpec]]], earlier: Earlier
) -> dict[str, Any]:
    """Return every candidate's score (the mean over settings and seeds), and the best candidate."""
    rows = []
    for point, jobs in candidates:
        if earlier.has(method, point):
            values = earlier.values[method, named(point)]
            value = math.fsum(values) / len(values)
        else:
            values = [sweep.score_of(job) for job in jobs if job.finished]
            value = sweep.value(jobs) if len(values) == len(jobs) else math.nan
        rows.append(
            {
                "options": point,
                "value": value if math.isfinite(value) else None,
                "values": [one if math.isfinite(one) else None for one in values],
            }
        )
    known = [row for row in rows if row["value"] is not None]
    best = None
    if known:
        choose = max if sweep.higher else min
        best = choose(known, key=lambda row: row["value"])
    return {
        "score": sweep.score,
        "best": best and best["options"],
        "value": best and best["value"],
        "without_score": len(rows) - len(known),
        "candidates": rows,
    }


def tune(arguments: argparse.Namespace) -> list[RunOutcome]:
    """Run the chosen methods of the plan, and write the result, also after an interrupt."""
    plan = Tuning.read(arguments.plan)
    out = arguments.out
    settings = list(arguments.set)
    chosen = words_of(arguments.methods) or list(plan.candidates)
    for name in chosen:
        if name not in plan.candidates:
            raise CafedclError(
                f"--methods {name}: it has no candidates; {nearest(name, list(plan.candidates))}"
            )
    local = [f"data.dir={to_toml(arguments.data_dir)}"] if arguments.data_dir else []
    sweeps = {
        name: {
            where: plan.sweep(name, where, arguments.seeds, [*settings, *local])
            for where in plan.settings
        }
        for name in plan.candidates
    }
    jobs = {name: plan.jobs(out, name, of_method) for name, of_method in sweeps.items()}
    shared = {
        "settings": [asdict(where) for where in plan.settings],
        "hold_out": plan.hold_out,
        "options": plan.shared(settings),
    }
    with held(out, shared):
        # Which images are held out depends neither on the method nor on the split.
        by_data = {where.data: (where, sweep) for where, sweep in sweeps[chosen[0]].items()}
        fetch_data([sweep.tables({}) for _, sweep in by_data.values()])
        measured_on = " and ".join(
            sweep.prepare(where.folder(out)) for where, sweep in by_data.values()
        )
        earlier = Earlier.read(
            arguments.earlier,
            {**shared, "measured_on": measured_on, "seeds": arguments.seeds},
            {name: plan.scores.get(name, plan.score) for name in plan.candidates},
        )
        missing = [
            job
            for name in chosen
            for point, of_point in jobs[name]
            if not earlier.has(name, point)
            for job in of_point
        ]
        # The first seed of all candidates comes first.
        missing.sort(key=lambda job: job.seed)
        try:
            return run(missing, arguments.jobs, arguments.quiet)
        finally:
            methods = {
                name: scored(name, next(iter(of_method.values())), jobs[name], earlier)
                for name, of_method in sweeps.items()
            }
            part = ["--methods", ",".join(chosen)] if arguments.methods else []
            command = [*command_of(arguments.plan), *part, "--seeds", str(arguments.seeds)]
            for setting in settings:
                command += ["--set", setting]
            result = {
                **shared,
                "measured_on": measured_on,
                "budget": plan.budget,
                "seeds": arguments.seeds,
                "methods": {name: it for name, it in methods.items() if it["best"] is not None},
                "earlier": earlier.environments,
                "environment": environment(command, "cuda" if torch.cuda.is_available() else "cpu"),
            }
            write_atomically(out / RESULT, (json.dumps(result, indent=1) + "\n").encode())
            if not arguments.quiet:
                for name, it in result["methods"].items():
                    print(f"{name}: {it['score']} {it['value']:.4f} with {it['best']}", flush=True)


def command_of(plan: Path) -> list[str]:
    """Return how the command of a plan begins."""
    command = ["python", "experiments/tuning.py"]
    return command if plan == PLAN else [*command, "--plan", f"experiments/{plan.name}"]


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, tune, and report failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, default=PLAN, help="file with the candidates")
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"), help="folder of all runs")
    parser.add_argument("--data-dir", default="", help="folder with data files")
    parser.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        help="an earlier result; its candidates are not run again",
    )
    parser.add_argument(
        "--study",
        type=Path,
        help="run nothing; write a study of the best candidates to this file",
    )
    parser.add_argument(
        "--jobs", type=int, default=None, help="number of runs at a time, per GPU if there are any"
    )
    parser.add_argument(
        "--methods", action="append", default=[], help="only these methods, separated by commas"
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of every candidate")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="an option of all runs",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    arguments = parser.parse_args(words)
    if arguments.study and not arguments.earlier:
        parser.error("--study needs --from, the result with the best candidates")
    try:
        if arguments.study:
            plan = Tuning.read(arguments.plan)
            command = [
                *command_of(arguments.plan),
                *("--from", f"experiments/results/{arguments.earlier.name}"),
                *("--study", f"cafedcl/compare/studies/{arguments.study.name}"),
            ]
            result = read_result(arguments.earlier)
            text = study_of(plan.study, result, arguments.study.stem, " ".join(command))
            write_atomically(arguments.study, text.encode())
        else:
            end(tune(arguments), "run the same command again to retry them")
    except CafedclError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
