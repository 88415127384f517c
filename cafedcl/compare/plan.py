"""Plans of many runs: which runs there are, their folders, and the file that keeps the plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cafedcl.compare.jobs import RunSpec
from cafedcl.config.flags import Flags, base_of, set_flags
from cafedcl.config.options import flattened, read_options, to_toml
from cafedcl.config.sections import (
    CHOICES,
    SECTIONS,
    assign,
    label,
    read_file,
)
from cafedcl.config.split_options import OF_ONE_KIND, SPLITS, parse_split, replaced_split
from cafedcl.core.commands import cafedcl_command
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.core.paths import absolute
from cafedcl.core.slug import slug
from cafedcl.federation.run_folder import RunFolder, refuse_inside_run
from cafedcl.task.resolve import resolve

Tables = dict[str, dict[str, Any]]

SET_PER_RUN = ("data.name", "run.seed", "engine.device")
"""Options that a plan sets for each run separately, besides the method and the split."""


@dataclass(frozen=True)
class Comparison:
    """Methods × data sets × splits × seeds; all other options are the same."""

    methods: tuple[str, ...]
    data: tuple[str, ...]
    splits: tuple[str, ...]
    """As on the command line; if empty, the split of the settings is used."""
    seeds: int
    first_seed: int
    settings: dict[str, Any]
    """Options of all runs, by flat names such as ``train.lr``."""
    options: dict[str, dict[str, Any]]
    """Further options of each method and of its tail augmentation, by flat names."""

    FILE = "compare.toml"
    COMMAND = "compare"

    @classmethod
    def make(
        cls,
        methods: Sequence[str],
        data: Sequence[str],
        splits: Sequence[str],
        seeds: int,
        first_seed: int,
        tables: Mapping[str, Any],
        settings: Iterable[str],
        flags: Flags | None = None,
    ) -> "Comparison":
        """Make a plan from a config file's tables, flags and ``section.key=value`` settings.

        Method options of the file apply to the method that the file names; those of ``--set`` to
        every method that has such an option. A tail augmentation applies to every method that does
        not name its own, as in ``fedproto+gan``; its options apply to the methods that have them.
        """
        check_seeds(seeds, first_seed)
        base = checked_tables(tables)
        set_flags(base, flags or {})
        chosen: Tables = {}
        for setting in settings:
            assign(chosen, setting)
        given = base.pop("method", {})
        name = str(given.pop("name", "cafedcl"))
        tail = {**base.pop("augment", {}), **chosen.pop("augment", {})}
        common = str(tail.pop("name", "none"))
        named = unique(
            [it if "+" in it else label(it, common) for it in methods or [name]], "--methods"
        )
        options: dict[str, dict[str, Any]] = {method: {} for method in named}
        for method in named:
            if base_of(method) == base_of(name):
                options[method] |= flattened({"method": given})
        share_out("method", chosen.pop("method", {}), options)
        share_out("augment", tail, options)
        flat = {**flattened(base), **flattened(chosen)}
        sets = unique(
            [absolute_data_name(name) for name in data or [str(flat.get("data.name", "digits"))]],
            "--data",
        )
        refuse_seed(chosen)
        ignored = [key for key in chosen.get("split", {}) if key in {"kind", *OF_ONE_KIND}]
        if splits and ignored:
            raise CafedclError(
                f"--set split.{ignored[0]}: --splits says how to split; set it there, as in "
                "--splits dirichlet:0.1"
            )
        kept = {key: value for key, value in flat.items() if key not in SET_PER_RUN}
        return cls(
            tuple(named), tuple(sets), tuple(split_names(splits)), seeds, first_seed, kept, options
        )

    def jobs(self, out: Path) -> list[RunSpec]:
        """Return all runs; all runs of one seed come before the next seed."""
        jobs = []
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for data in self.data:
                for split in self.splits or (None,):
                    for method in self.methods:
                        tables = self.tables(method, data, split, seed)
                        named = split or str(tables.get("split", {}).get("kind", "auto"))
                        words = (place_of(data), slug(named), slug(method), f"s{seed}")
                        jobs.append(RunSpec.of(out, "/".join(words), tables))
        twice = {job.place for job in jobs if sum(other.place == job.place for other in jobs) > 1}
        if twice:
            raise CafedclError(
                f"{out}: two runs would share the folder {min(twice)}; make two comparisons"
            )
        return jobs

    def tables(self, method: str, data: str, split: str | None, seed: int) -> Tables:
        """Return one run's config."""
        tables: Tables = {"method": {"name": method}, "data": {"name": data}, "run": {"seed": seed}}
        overlay(tables, self.options[method])
        overlay(tables, self.settings)
        if split is not None:
            tables["split"] = replaced_split(tables.get("split", {}), split)
        return with_one_worker(tables)

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plain.items()
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Comparison":
        """Return the plan of plain values."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in plain.items()
        }
        if values.keys() != {field.name for field in fields(cls)}:
            raise CafedclError(
                f"{cls.FILE}: not a plan of `cafedcl {cls.COMMAND}`; choose another --out"
            )
        return cls(**values)


def with_one_worker(tables: Tables) -> Tables:
    """Return the tables with one worker process: the run shares the machine with others."""
    tables["engine"] = {**tables.get("engine", {}), "workers": 1}
    return tables


def share_out(section: str, given: Mapping[str, Any], options: dict[str, dict[str, Any]]) -> None:
    """Give each method those options that it has; an option that no method has is an error."""
    known = {
        method: {
            field.name
            for field in fields(getattr(resolve({"method": {"name": method}}), section).options)
        }
        for method in options
    }
    for key, value in given.items():
        takers = [method for method in options if key in known[method]]
        if not takers:
            raise CafedclError(
                f"--set {section}.{key}: none of {', '.join(options)} has such an option"
            )
        for method in takers:
            options[method][f"{section}.{key}"] = value


def checked_tables(tables: Mapping[str, Any]) -> Tables:
    """Return the tables of a config file; raises an error for an unknown section."""
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise CafedclError(f"{name}: a section is expected, such as [{name}]")
        if name not in SECTIONS and name not in CHOICES:
            raise CafedclError(
                f"[{name}]: there is no such section in a config; see `cafedcl config`"
            )
    return {name: dict(table) for name, table in tables.items()}


def check_seeds(seeds: int, first: int) -> None:
    """Raise an error for an impossible number of seeds or first seed."""
    if seeds < 1:
        raise CafedclError(f"--seeds {seeds}: it must be at least 1")
    if first < 0:
        raise CafedclError(f"--first-seed {first}: it must be at least 0")


def refuse_seed(chosen: Mapping[str, Any]) -> None:
    """Refuse a seed among ``--set`` options: every run of a plan has its own."""
    if "seed" in chosen.get("run", {}):
        raise CafedclError("--set run.seed: use --seeds N and --first-seed N")


def first_seed_of(tables: Mapping[str, Any], given: int | None) -> int:
    """Return the first seed: the given one, or else that of a config file."""
    if given is not None:
        return given
    seed: int = read_options(SECTIONS["run"], checked_tables(tables).get("run", {}), "run").seed
    return seed


def how_to_add(there: Mapping[str, Any], plan: Mapping[str, Any], out: Path) -> str:
    """Return how seeds or methods are added to a comparison; empty if something else differs."""
    if there.keys() != plan.keys():
        return ""
    differing = {name for name in plan if there[name] != plan[name]}
    together = f"; then `{cafedcl_command('table', out)} OTHER` shows both"
    if differing == {"seeds"} and plan["seeds"] > there["seeds"]:
        first = there["first_seed"] + there["seeds"]
        more = plan["seeds"] - there["seeds"]
        return f". To add seeds: --first-seed {first} --seeds {more} --out OTHER{together}"
    same = all(plan["options"].get(name) == it for name, it in there["options"].items())
    if differing <= {"methods", "options"} and same and {*plan["methods"]} > {*there["methods"]}:
        added = [name for name in plan["methods"] if name not in there["methods"]]
        return f". To add methods: --methods {','.join(added)} --out OTHER{together}"
    return ""


def overlay(tables: Tables, flat: Mapping[str, Any]) -> None:
    """Set options by flat names."""
    for name, value in flat.items():
        section, _, key = name.partition(".")
        tables.setdefault(section, {})[key] = value


def words_of(values: Iterable[str]) -> list[str]:
    """Return the words of an option that takes commas and can be repeated."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def data_names(values: Iterable[str]) -> list[str]:
    """Return the data sets of an option ``--data``; a path that exists may have commas."""
    names: list[str] = []
    for value in values:
        names += [value] if _exists(value) else words_of([value])
    return names


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        # The text is too long for a path, holds a null byte, or names an unknown home folder.
        return False


def unique(words: Sequence[str], option: str) -> list[str]:
    """Return the words; raises an error if one appears twice."""
    for word in words:
        if list(words).count(word) > 1:
            raise CafedclError(f"{option}: '{word}' is given twice")
    return list(words)


def split_names(values: Iterable[str]) -> list[str]:
    """Return the splits of a text such as ``dirichlet:0.1,pathological:2,ir=10``.

    A part that does not begin with the name of a split belongs to the split before it.
    """
    names: list[str] = []
    for value in values:
        begun = False
        for part in value.split(","):
            if begun and part.partition(":")[0].strip() not in SPLITS:
                names[-1] += f",{part.strip()}"
            else:
                names.append(part.strip())
                begun = True
    for name in names:
        parse_split(name)
    return unique(names, "--splits")


def absolute_data_name(data: str) -> str:
    """Return the name of a data set; a path becomes absolute, so that any folder can be used."""
    from cafedcl.data import is_own

    return absolute(data) if is_own(data) else data


def place_of(data: str) -> str:
    """Return the folder name of a data set."""
    from cafedcl.data import is_own

    return slug(Path(data).stem if is_own(data) else data)


@contextmanager
def planned(
    out: Path,
    plan: dict[str, Any],
    file: str,
    command: str,
    check: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Lock the folder of a plan, and write the plan; an existing plan must be the same.

    ``check`` may refuse a new plan before it is written.
    """
    path = out / file
    if path.is_file():
        if stored_plan(out, file, command) != plan:
            there = read_file(path)
            raise CafedclError(
                f"{out}: holds another plan ({differences(there, plan)}); resume it with "
                f"`{resume_command(command, there, out)}`, or choose another --out"
                f"{how_to_add(there, plan, out) if file == Comparison.FILE else ''}"
            )
    # A command that stopped before it wrote its plan leaves only a lock file behind.
    elif out.exists() and not (
        out.is_dir() and not any(child.name != "lock" for child in out.iterdir())
    ):
        raise CafedclError(
            f"{out}: exists and holds no plan of `cafedcl {command}`; choose another --out"
        )
    refuse_inside_run(out)
    with RunFolder(out).held():
        if not path.is_file():
            check()
            with explained(out):
                write_atomically(path, plan_toml(plan, command).encode())
        yield


def resume_command(name: str, plan: Mapping[str, Any], out: object) -> str:
    """Return the command that resumes a plan."""
    if "study" in plan:
        return cafedcl_command(name, plan["study"], "--scale", plan["scale"], "--out", out)
    return cafedcl_command(name, "--resume", out)


def stored_plan(out: Path, file: str, command: str) -> dict[str, Any]:
    """Return the plan that a folder holds."""
    if not (out / file).is_file():
        raise CafedclError(
            f"{out}: there is no plan to resume (no {file}); start one with `cafedcl {command}`"
        )
    return read_file(out / file)


def plan_toml(plan: Mapping[str, Any], command: str) -> str:
    """Return a plan as TOML: plain values first, then its tables."""
    resume = resume_command(command, plan, "THIS-FOLDER")
    lines = [f"# written by `cafedcl {command}`; resume with: {resume}"]
    lines += [
        f"{name} = {to_toml(value)}"
        for name, value in plan.items()
        if not isinstance(value, Mapping)
    ]
    for name, value in plan.items():
        if isinstance(value, Mapping):
            lines += [
                "",
                f"[{name}]",
                *(f"{to_toml(key)} = {to_toml(inner)}" for key, inner in value.items()),
            ]
    return "\n".join(lines) + "\n"


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the first difference between two plans."""
    names = [name for name in {**there, **wanted} if there.get(name) != wanted.get(name)]
    first = names[0]
    if isinstance(there.get(first), Mapping) and isinstance(wanted.get(first), Mapping):
        inner = differences(there[first], wanted[first])
        return f"{first}: {inner}"
    shown = [to_toml(table[first]) if first in table else "nothing" for table in (there, wanted)]
    return f"{first} is {shown[0]} there and {shown[1]} here"
