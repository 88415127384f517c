"""Studies: tables and figures of the paper, as files of settings × methods at several scales."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cafedcl.compare.jobs import RunSpec
from cafedcl.compare.plan import Comparison, Tables, overlay
from cafedcl.config.options import flattened, to_toml
from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.slug import slug
from cafedcl.task.resolve import resolve

STUDIES = Path(__file__).with_name("studies")
"""The folder of the studies, which are part of the package."""
SCALES = STUDIES / "scales.toml"
"""The sizes at which every study can be run; the only file in the folder that is not a study."""


@dataclass(frozen=True)
class StudySetting:
    """A data set and a split that all methods of a study run on."""

    name: str
    data: str
    split: str
    smoke: str = ""
    """The split at the smoke scale, whose data set has fewer classes."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyScale:
    """The size of a study: seeds, and options such as the number of rounds."""

    about: str
    seeds: int
    data: str = ""
    """If set, it replaces every data set."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A table or figure: methods × settings, and for a figure the values of some options."""

    title: str
    methods: tuple[str, ...]
    settings: tuple[StudySetting, ...]
    vary: dict[str, list[Any]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    each: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of single methods, by name, as found by tuning."""

    def only(self, settings: Sequence[str], methods: Sequence[str]) -> "Study":
        """Return the part with these settings and methods; empty lists stand for all."""
        for asked, known in (
            (settings, [one.name for one in self.settings]),
            (methods, list(self.methods)),
        ):
            for name in asked:
                if name not in known:
                    raise CafedclError(f"{name}: not part of this study; {nearest(name, known)}")
        return replace(
            self,
            methods=tuple(name for name in self.methods if not methods or name in methods),
            settings=tuple(one for one in self.settings if not settings or one.name in settings),
        )

    def jobs(
        self, out: Path, setting: StudySetting, seeds: int, overrides: Sequence[str]
    ) -> Iterator[RunSpec]:
        """Yield the runs of one setting: first the default, then with one option changed each."""
        for point, place in self.points(out, setting):
            for plan in self._plans(setting, seeds, point, overrides):
                yield from plan.jobs(place)

    def points(self, out: Path, setting: StudySetting) -> Iterator[tuple[dict[str, Any], Path]]:
        """Yield each point's changed option, none for the first, and the folder of its runs."""
        for point in ({}, *self.changes()):
            words = ",".join(
                f"{name.partition('.')[2]}={to_toml(value)}" for name, value in point.items()
            )
            yield point, out / setting.name / slug(words) if point else out / setting.name

    def places(
        self, out: Path, setting: StudySetting
    ) -> Iterator[tuple[dict[str, Any], str, Path]]:
        """Yield the changed option, the method, and the folder with a run per seed."""
        for point, place in self.points(out, setting):
            for plan in self._plans(setting, 1, point, ()):
                for method, job in zip(plan.methods, plan.jobs(place), strict=True):
                    yield point, method, job.folder.parent

    def at(self, scale: StudyScale) -> "Study":
        """Return the study at a scale; settings that become equal are merged."""
        known: dict[object, StudySetting] = {}
        for one in self.settings:
            split = (one.smoke or one.split) if scale.data else one.split
            options = {**self.options, **one.options, **scale.options}
            settled = replace(one, data=scale.data or one.data, split=split, options=options)
            known.setdefault((settled.data, split, repr(options)), settled)
        return replace(self, settings=tuple(known.values()))

    def changes(self) -> Iterator[dict[str, Any]]:
        """Yield every value of every varied option, except those that all methods have anyway."""
        usual = [self._usual(method) for method in self.methods]
        for name, values in self.vary.items():
            for value in values:
                if any(value != options.get(name) for options in usual):
                    yield {name: value}

    def _usual(self, method: str) -> dict[str, Any]:
        """Return the options of a method in this study, by name."""
        tables: Tables = {}
        shared = {name: it for name, it in self.options.items() if not name.startswith("augment.")}
        overlay(tables, {**shared, **self.each.get(method, {}), "method.name": method})
        return flattened(resolve(tables).to_plain())

    def _plans(
        self, setting: StudySetting, seeds: int, point: Mapping[str, Any], overrides: Sequence[str]
    ) -> Iterator[Comparison]:
        """Yield one plan for all methods without their own options, then one for each other."""
        shared = tuple(name for name in self.methods if name not in self.each)
        groups: list[tuple[str, ...]] = [(name,) for name in self.methods if name in self.each]
        if shared:
            groups.insert(0, shared)
        for methods in groups:
            generated = any(
                resolve({"method": {"name": name}}).augment.name == "gan" for name in methods
            )
            options = {**setting.options, **self.each.get(methods[0], {}), **point}
            taken = {
                name: value
                for name, value in options.items()
                if generated or not name.startswith("augment.")
            }
            yield Comparison.make(
                methods=methods,
                data=[setting.data],
                splits=[setting.split],
                seeds=seeds,
                first_seed=0,
                tables={},
                settings=[
                    *(f"{name}={to_toml(value)}" for name, value in taken.items()),
                    *overrides,
                ],
            )


def study_names() -> list[str]:
    """Return the names of all studies of the package."""
    return sorted(path.stem for path in STUDIES.glob("*.toml") if path != SCALES)


def read_study(name: str) -> Study:
    """Read a study of the package by its name, or one of your own by the path of its file."""
    path = Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        raise CafedclError(f"{name}: there is no such study; {nearest(name, study_names())}")
    table = read_file(path)
    check_entries(Study, table, str(path))
    given = table.pop("settings", [])
    if not given or not table.get("methods"):
        raise CafedclError(f"{path}: a study needs methods and [[settings]]")
    check_list(given, dict, f"{path}: settings: tables [[settings]] are expected")
    check_list(table["methods"], str, f"{path}: methods: a list of names is expected")
    settings = tuple(build_from_table(StudySetting, one, f"{path}: settings") for one in given)
    names = [one.name for one in settings]
    for one in names:
        if names.count(one) > 1:
            raise CafedclError(f"{path}: settings: two are called {one}; give each its own name")
    made: Study = build_from_table(Study, {**table, "settings": settings}, str(path))
    for method in made.each:
        if method not in made.methods:
            raise CafedclError(
                f"{path}: each: {method}: not a method of this study; "
                f"{nearest(method, list(made.methods))}"
            )
    return made


def check_list(value: object, kind: type, problem: str) -> None:
    """Raise an error unless a value is a list whose entries are all of one type."""
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise CafedclError(problem)


def read_scales() -> dict[str, StudyScale]:
    """Return all scales by name."""
    return {
        name: build_from_table(StudyScale, table, f"{SCALES}: {name}")
        for name, table in read_file(SCALES).items()
    }


def check_entries(cls: type[Any], table: Mapping[str, Any], where: str) -> None:
    """Raise an error for an entry that a dataclass does not have."""
    known = [entry.name for entry in fields(cls)]
    for name in table:
        if name not in known:
            raise CafedclError(f"{where}: {name}: there is no such entry; {nearest(name, known)}")


def build_from_table(cls: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """Return an instance of a dataclass from a TOML table; raises an error for a wrong entry."""
    check_entries(cls, table, where)
    values = dict(table)
    if "methods" in values:
        values["methods"] = tuple(values["methods"])
    try:
        return cls(**values)
    except TypeError as error:
        # Python's message reads "Setting.__init__() missing …"; the part after "() " is for users.
        raise CafedclError(f"{where}: {str(error).partition('() ')[2]}") from None
