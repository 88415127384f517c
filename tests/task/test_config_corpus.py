"""Hundreds of odd configs: each is prepared as it was given, or refused in one line.

The corpus is made from the declared options, so that a new option, method or augmentation is in it
without anybody adding it.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest
from quick import QUICK

from cafedcl.augment import AUGMENTERS, find_augmenter
from cafedcl.config.sections import SECTIONS
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.methods import find_method, method_names
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve

SMALL: dict[str, dict[str, Any]] = {
    "method": {"name": "fedavg"},
    "model": {"name": "mlp", "width": 0.1},
    "split": {"kind": "iid"},
    "federation": {"clients": 3, "rounds": 2},
    "engine": {"device": "cpu"},
}
"""A run that is prepared in milliseconds; a case changes some of it."""
ANY_TYPE = [
    *("", "x", "ünï©ödé 漢😀", "a\nb", "\x00", " ", "nan", "1", "true", "../..", "x" * 10_000),
    *(True, False, 0, -1, 1, 2, 3.5, -0.5, 10**12, 2**63, -(2**63), 10**400, 1e-300, 1e300),
    *(math.nan, math.inf, -math.inf, -0.0),
    *([], [1], [1, 2], ["x"], [[1]], [math.nan, 1.0], [0.0, 0.0, 0.0], {}, {"a": 1}, None),
]
"""Values of every type, most of them wrong for any one option."""
DOWNLOADED = {"data.name", "data.test", "data.dir"}
"""Names of files and folders, which tests of the data cover."""


class Case(NamedTuple):
    """A changed config."""

    changes: dict[str, Any]
    """Options by their full names."""
    told: str = ""
    """Words that the message must contain; empty if the case may be accepted."""

    def tables(self) -> dict[str, Any]:
        tables: dict[str, Any] = {name: dict(table) for name, table in SMALL.items()}
        for name, value in self.changes.items():
            section, dot, key = name.partition(".")
            if dot:
                tables.setdefault(section, {})[key] = value
            else:
                tables[section] = value
        return tables


def named(section: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that choose a method or an augmentation, with some of its options."""
    return {f"{section}.{key}": value for key, value in {"name": name, **options}.items()}


def declared() -> Iterator[tuple[dict[str, Any], str, dataclasses.Field[Any], Any]]:
    """Yield every option with the settings it needs, its name, its declaration and its type."""
    classes: list[tuple[dict[str, Any], str, type[Any]]] = [
        ({}, section, cls) for section, cls in SECTIONS.items()
    ]
    classes += [
        (named("method", name, QUICK.get(name, {})), "method", find_method(name)[0].Options)
        for name in method_names()
    ]
    classes += [
        (named("augment", name, {}), "augment", find_augmenter(name).Options) for name in AUGMENTERS
    ]
    for needs, section, cls in classes:
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            yield needs, f"{section}.{field.name}", field, hints[field.name]


def near_limits(field: dataclasses.Field[Any], hint: Any, usual: Any) -> list[Any]:
    """Return the values at an option's limits, just beyond them, all choices and a usual value."""
    limits = field.metadata["limits"]
    values: list[Any] = [*limits.choices, usual]
    step: Any = 1 if hint is int else 1e-3
    for limit in (limits.low, limits.high, limits.above):
        if limit is not None:
            number = type(step)(limit)
            values += [number - step, number, number + step]
    if get_origin(hint) is tuple:
        length = len(get_args(hint))
        return [[value] * length for value in values if not isinstance(value, tuple)]
    return values


def one_option_cases() -> Iterator[Case]:
    for needs, name, field, hint in declared():
        if name in DOWNLOADED:
            continue
        # Many options times all values would be thousands of cases; each option takes some of
        # them, and neighbours take different ones.
        offset = len(name) + ord(name[-1])
        some = [ANY_TYPE[(offset + 7 * i) % len(ANY_TYPE)] for i in range(6)]
        # Where the default takes seconds, `needs` has a value that does not.
        usual = needs.get(name, field.default)
        for value in (*near_limits(field, hint, usual), *some, math.nan, math.inf, [field.default]):
            yield Case({**needs, name: value})
        yield Case({**needs, f"{name}x": 1}, "there is no such option")
        yield Case({**needs, name.upper(): 1}, "there is no such")


def structure_cases() -> Iterator[Case]:
    for section in (*SECTIONS, "method", "augment"):
        for value in ANY_TYPE:
            if not isinstance(value, dict):
                yield Case({section: value}, "a section is expected")
        yield Case({f"{section}s": {}}, "there is no such section")
        yield Case({f"{section}.": 1}, "there is no such option")
        yield Case({f"{section}.ö": 1}, "there is no such option")
        yield Case({f"{section}.seed.deep": 1}, "there is no such option")
    for name, told in (
        ("train.rounds", "there is no such option"),
        ("federation.lr", "there is no such option"),
        ("run.name", "there is no such option"),
        ("method.mu", "there is no such option"),
    ):
        yield Case({name: 1}, told)
    for value in ANY_TYPE:
        for name in ("method.name", "augment.name", "model.name", "engine.device"):
            yield Case({name: value}, "" if value in ("", "cpu") else name.partition(".")[0])


CONTRADICTIONS = [
    ({"split.kind": "file", "split.file": "x", "split.ir": 2.0}, "does not use it"),
    ({"split.kind": "file"}, "the path is missing"),
    ({"split.kind": "file", "split.file": "no such file"}, "cannot be read"),
    ({"split.kind": "natural"}, "has no clients of its own"),
    ({"split.kind": "natural", "split.alpha": 0.5}, "does not use it"),
    ({"split.kind": "iid", "split.classes": 3}, "does not use it"),
    ({"split.kind": "pathological", "split.form": "class"}, "does not use it"),
    ({"split.kind": "pathological", "split.classes": 11}, "only 10 classes"),
    ({"split.kind": "pathological", "split.classes": 1}, "cannot cover"),
    ({"split.kind": "dirichlet", "split.form": "class", "federation.clients": 500}, "cannot give"),
    ({"federation.clients": 5000}, "too few for 5000 clients"),
    ({"federation.drop": ["2:0"]}, "there is no round 2"),
    ({"federation.drop": ["0:3"]}, "there is no client 3"),
    ({"federation.drop": ["x"]}, "is not"),
    ({"federation.drop": [""]}, "is not"),
    ({"federation.min_replies": 4}, "every round would be skipped"),
    ({"federation.participation": 0.4, "federation.min_replies": 2}, "every round would be"),
    ({"method.name": "central", "federation.min_replies": 2}, "every round would be skipped"),
    ({"evaluate.shots": [1, 2]}, "must not be the smaller one"),
    ({"data.images": 9}, "at least one image each"),
    ({"data.images": 10, "federation.clients": 11}, "too few for 11 clients"),
    ({"split.ir": 1e6}, "would keep no image"),
    ({"train.crop": 8}, "must be smaller than the images"),
    ({"model.name": "cnn4"}, "are too small"),
    ({"engine.precision": "bf16"}, "only the cuda engine has a choice"),
    ({"engine.name": "cpu", "engine.precision": "tf32"}, "only the cuda engine has a choice"),
    ({"engine.device": "cuda:99"}, "cannot use it"),
    ({"engine.device": "nonsense"}, "there is no such device"),
    ({"method.name": "fedavg+gan", "augment.name": "mixup"}, "says otherwise"),
    ({"method.name": "fedavg+nothing"}, "there is no such augmentation"),
    ({"method.name": "fedavg+"}, ""),
    ({"method.name": "cafedcl", "method.inference": "head"}, "there is no head"),
    ({"method.name": "cafedcl", "method.w": [1, 1, 0]}, "must sum to 1"),
    ({"method.name": "cafedcl", "method.clip": [0.9, 0.1]}, "must not be the larger"),
    ({"method.name": "cafedcl:no-such"}, "there is no such preset"),
    ({"method.name": "fedavg:best"}, "there is no such preset"),
    ({"method.name": "nowhere_at_all:Method"}, "nor a Python module"),
    ({"augment.name": "nowhere_at_all:Tail"}, "there is no Python module"),
    ({"model.name": "nowhere_at_all:make"}, "there is no Python module"),
    ({"model.name": "json:loads"}, "building it"),
    ({"model.name": "torch.nn:Flatten"}, "model 'torch.nn:Flatten': it fails on images of"),
    ({"data.name": "sites"}, "a deployment on Flower"),
    ({"engine.name": "cuda", "engine.device": "auto"}, ""),
    ({"model.name": "resnet18", "model.width": 64.0}, ""),
]


def corpus() -> list[Case]:
    pairs = [Case(changes, told) for changes, told in CONTRADICTIONS]
    return [*one_option_cases(), *structure_cases(), *pairs]


CASES = corpus()
PARTS = 12


def same(given: Any, resolved: Any) -> bool:
    """Return whether a value is in the resolved config as it was given."""
    if isinstance(given, list):
        return len(given) == len(resolved) and all(map(same, given, resolved))
    if isinstance(given, int | float) and not isinstance(given, bool):
        return bool(given == resolved) and not isinstance(resolved, bool)
    return bool(given == resolved)


def verdict(case: Case, digits: Dataset) -> str:
    """Return what is wrong with how a case is treated, or nothing."""
    try:
        config = resolve(case.tables())
        plain = config.to_plain()
        for name, given in case.changes.items():
            section, _, key = name.partition(".")
            # `fedavg+gan` sets two options.
            expected = given.partition("+")[0] if name == "method.name" else given
            if not same(expected, plain[section][key]):
                return f"became {plain[section][key]!r} without a word"
        reads_data = config.data.name != "digits" or config.evaluate.protocol == "pfllib"
        data = None if reads_data else digits.reduced(config.data.images)
        settled = prepare(config, data).config.to_plain()
        for name, given in case.changes.items():
            section, _, key = name.partition(".")
            # These stand for something else, which is settled here.
            open_choice = given in ("auto", 0) or name in ("method.name", "split.file")
            if not open_choice and not same(given, settled[section][key]):
                return f"was settled to {settled[section][key]!r} without a word"
    except CafedclError as error:
        message = str(error)
        if "\n" in message or not message.strip():
            return f"is not refused in one line: {message!r}"
        return "" if case.told in message else f"is refused with other words: {message}"
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return "is accepted" if case.told else ""


def test_the_corpus_is_large_and_has_every_option() -> None:
    assert len(CASES) >= 600
    names = {name for case in CASES for name in case.changes}
    assert {name for _, name, _, _ in declared()} - DOWNLOADED <= names


@pytest.mark.parametrize("part", range(PARTS))
def test_every_config_is_prepared_as_given_or_refused_in_one_line(
    part: int, digits: Dataset
) -> None:
    wrong = {
        f"{str(case.changes)[:200]}": problem
        for case in CASES[part::PARTS]
        if (problem := verdict(case, digits))
    }
    assert wrong == {}
