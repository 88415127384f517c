"""Runs of a study that were made elsewhere: in another folder, or listed in a results file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cafedcl.compare.jobs import RunSpec, other_option
from cafedcl.compare.plan import stored_plan
from cafedcl.compare.results import Member, key_of, merged, read_results, read_study_folder
from cafedcl.compare.study import Study, StudyScale
from cafedcl.core.errors import CafedclError

PLAN_FILE = "reproduce.toml"
"""The plan of a study, in the folder of its runs."""


def read_elsewhere(
    path: Path, study: Study, plan: Mapping[str, Any], size: StudyScale
) -> list[Member]:
    """Return the runs of another folder, or of a results file."""
    name = plan["study"]
    scale = plan["scale"]
    if path.is_dir():
        return read_study_folder(path, study, size, settings_there(path, name, scale))
    return read_results(path, name, study, scale)


def settings_there(path: Path, study: str, scale: str) -> list[str]:
    """Return the `--set` options of a folder with runs of the same study and scale."""
    plan = stored_plan(path, PLAN_FILE, "reproduce")
    if (plan.get("study"), plan.get("scale")) != (study, scale):
        there = f"{plan.get('study')} at scale {plan.get('scale')}"
        raise CafedclError(
            f"--from {path}: it holds runs of {there}, not of {study} at scale {scale}"
        )
    return list(plan.get("settings", ()))


def done_elsewhere(
    out: Path, study: Study, size: StudyScale, elsewhere: Sequence[Sequence[Member]]
) -> dict[Path, Member]:
    """Return the runs that can be skipped because they are finished elsewhere, by their folder."""
    done = {one.key: one for one in merged(elsewhere, study) if one.record is not None}
    seeds = {seed for *_, seed in done}
    return {
        folder / f"s{seed}": done[key]
        for setting in (study.at(size).settings if done else ())
        for changed, method, folder in study.places(out, setting)
        for seed in seeds
        if (key := key_of(setting.name, method, changed, seed)) in done
    }


def check_same_options(jobs: Iterable[RunSpec], known: Mapping[Path, Member]) -> None:
    """Raise an error if a run from elsewhere and the planned one differ in their options."""
    for job in jobs:
        if job.folder not in known:
            continue
        member = known[job.folder]
        difference = other_option(job.tables, member.run.settings)
        if difference:
            raise CafedclError(
                f"--from: {member.name} was made with {difference} today; leave its file out, or "
                "ask for other --methods"
            )
