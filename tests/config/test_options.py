import dataclasses
import datetime
import tomllib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.config.options import (
    TINY,
    Limits,
    meaning,
    option,
    read_options,
    refuse_unreadable,
    to_plain,
    to_toml,
    toml_section,
)
from cafedcl.config.sections import SECTIONS, assign, read_file
from cafedcl.config.split_options import parse_split
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.methods import find_method, method_names
from cafedcl.task.resolve import gather, resolve

METHODS = [*method_names(), "cafedcl:literal", "cafedcl:no-geo"]
SCALARS = (
    st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(10**30), 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=6,
)


def fields_of(section):
    cls = find_method("cafedcl")[0].Options if section == "method" else SECTIONS[section]
    return dataclasses.fields(cls)


@st.composite
def sections(draw, name):
    """A section with some of its own keys, most with a value of the right kind, and now and then a
    foreign key.
    """
    table = {}
    for field in draw(
        st.lists(st.sampled_from(fields_of(name)), max_size=3, unique_by=lambda f: f.name)
    ):
        choices = field.metadata["limits"].choices
        kinds = {
            bool: st.booleans(),
            int: st.integers(-1, 200),
            float: st.floats(-1, 3, width=32) | st.integers(0, 3),
            str: st.sampled_from(choices) if choices else st.text(max_size=6),
            tuple: st.lists(st.floats(0, 1) | st.integers(0, 200), max_size=4),
        }
        table[field.name] = draw(kinds[type(field.default)] | VALUES)
    if draw(st.integers(0, 9)) == 0:
        table[draw(st.text(max_size=8))] = draw(VALUES)
    return table


@st.composite
def configs(draw):
    tables = {
        name: draw(sections(name))
        for name in draw(st.lists(st.sampled_from(["method", *SECTIONS]), max_size=4))
    }
    if draw(st.integers(0, 9)) == 0:
        tables[draw(st.text(max_size=8))] = draw(VALUES)
    if draw(st.booleans()):
        tables.setdefault("method", {})["name"] = draw(
            st.sampled_from(METHODS) | st.text(max_size=8) | SCALARS
        )
    return tables


def refusal(function, *arguments):
    """Return what a CafedclError says, or nothing; any other exception is let through."""
    try:
        function(*arguments)
    except CafedclError as error:
        return str(error)
    return None


def in_one_line(text):
    return text is None or len(text.splitlines()) == 1


@given(configs())
@settings(max_examples=300)
def test_any_config_is_resolved_or_refused_in_one_line(tables):
    assert in_one_line(refusal(resolve, tables))


@given(configs())
@settings(max_examples=200)
def test_a_resolved_config_survives_toml(tables):
    if refusal(resolve, tables) is None:
        config = resolve(tables)
        assert resolve(config.to_plain()) == config
        for explain in (False, True):
            assert resolve(tomllib.loads(config.to_toml(explain=explain))) == config


@given(st.text(max_size=40) | st.builds("{}.{}={}".format, *[st.text(max_size=8)] * 3))
@settings(max_examples=200)
def test_any_setting_is_taken_or_refused_in_one_line(text):
    tables = {}
    assert in_one_line(refusal(assign, tables, text))
    assert in_one_line(refusal(resolve, tables))


@given(st.text(max_size=30) | st.builds("dirichlet:{},{}={}".format, *[st.text(max_size=6)] * 3))
@settings(max_examples=200)
def test_any_split_is_taken_or_refused_in_one_line(text):
    assert in_one_line(refusal(lambda: resolve({"split": parse_split(text)})))


@pytest.mark.parametrize(
    "tables",
    [
        {"method": {"name": "."}},
        {"method": {"name": ".relative:Method"}},
        {"method": {"name": "os.path:join"}},
        {"method": {"name": "no.such.module:Method"}},
        {"train": {"epochs": 10**400}},
        {"train": {"epochs": "x" * 3, "lr": 1.0}},
        {"train": {"lr": 10**400}},
        {"train": {"lr": [10**5000]}},
        {"train": {"a\nb": 1}},
        {"a\nb": {}},
        {"method": {"name": "a\nb"}},
    ],
)
def test_odd_configs_are_refused_in_one_line(tables):
    text = refusal(resolve, tables)
    assert text is not None
    assert in_one_line(text)


@pytest.mark.parametrize(
    "text",
    [
        "train.epochs=" + "9" * 5000,
        "train.epochs=" + "[" * 5000,
        "a\nb",
        "train.lr\n",
        "no equals",
        "=",
        "a=1",
    ],
)
def test_odd_settings_are_refused_in_one_line(text):
    tables = {}
    said = refusal(assign, tables, text) or refusal(resolve, tables)
    assert said is not None
    assert in_one_line(said)


@pytest.mark.parametrize(
    "text", ["value = " + "9" * 5000, "value = " + "[" * 5000, "value = ", "\0"]
)
def test_odd_files_are_refused_in_one_line(tmp_path, text):
    path = tmp_path / "odd.toml"
    path.write_text(text)
    said = refusal(read_file, path)
    assert "odd.toml" in said
    assert in_one_line(said)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(CafedclError, match="not UTF-8"):
        read_file(tmp_path / "bytes.toml")
    with pytest.raises(CafedclError, match="cannot be read: No such file"):
        read_file(tmp_path / "none.toml")
    with pytest.raises(CafedclError, match="a config file is expected, and this is a folder"):
        read_file(tmp_path)


@pytest.mark.parametrize("name", ["\x7f", "\x00\x1f", '"', "\\", "a\nb", "é\u2028漢😀", "'''"])
def test_any_text_survives_toml(name):
    config = resolve({"data": {"name": name}})
    assert resolve(tomllib.loads(config.to_toml(explain=True))).data.name == name


@given(
    st.recursive(
        st.booleans()
        | st.integers(-(2**60), 2**60)
        | st.floats(allow_nan=False)
        | st.text(max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
        ),
    )
)
@settings(max_examples=200)
def test_values_survive_toml(value):
    assert tomllib.loads(f"value = {to_toml(value)}")["value"] == value


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_of_every_method_survive_toml(name):
    config = resolve({"method": {"name": name}})
    assert resolve(tomllib.loads(config.to_toml(explain=True))) == config
    assert resolve({"method": {"name": name}, **{section: {} for section in SECTIONS}}) == config


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"train": {"epoch": 3}}, "train.epoch: there is no such option; did you mean 'epochs'?"),
        ({"method": {"taw": 0.1}}, "method.taw: there is no such option; did you mean 'tau'?"),
        ({"trian": {}}, "[trian]: there is no such section; did you mean 'train'?"),
        (
            {"method": {"name": "fedavgg"}},
            "method 'fedavgg': there is no such method; did you mean 'fedavg'?",
        ),
        (
            {"method": {"name": "cafedcl:nogeo"}},
            "method 'cafedcl:nogeo': there is no such preset; did you mean 'no-geo'?",
        ),
        (
            {"method": {"name": "fedavg:fast"}},
            "method 'fedavg:fast': there is no such preset; fedavg has none",
        ),
        (
            {"method": {"name": "fedavg", "mu": 1}},
            "method.mu: there is no such option; this method has no options",
        ),
        ({"method": {"name": 3}}, "method.name = 3: a text is expected"),
        ({"split": {"kind": "dirichle"}}, "split.kind = \"dirichle\": did you mean 'dirichlet'?"),
        ({"train": {"lr": 0}}, "train.lr = 0: it must be greater than 0"),
        ({"train": {"epochs": 0}}, "train.epochs = 0: it must be at least 1 and at most 10,000"),
        (
            {"train": {"lr_decay": 1.5}},
            "train.lr_decay = 1.5: it must be greater than 0 and at most 1",
        ),
        ({"train": {"lr": float("nan")}}, "train.lr = nan: it must be a finite number"),
        ({"train": {"epochs": 2.0}}, "train.epochs = 2.0: a whole number is expected"),
        ({"train": {"epochs": True}}, "train.epochs = true: a whole number is expected"),
        ({"train": {"lr": False}}, "train.lr = false: a number is expected"),
        (
            {"train": {"lr_decay_in_round": 1}},
            "train.lr_decay_in_round = 1: true or false is expected",
        ),
        ({"method": {"w": [1, 2]}}, "method.w = [1, 2]: 3 values are expected"),
        ({"method": {"w": [0.5, -0.5, 1]}}, "method.w = [0.5, -0.5, 1]: it must be at least 0"),
        ({"method": {"w": 1}}, "method.w = 1: a list is expected, such as [1, 2]"),
        ({"train": 3}, "train: a section is expected, such as [train]"),
        (
            {"data": {"window": 100}},
            'data.window = 100: a text is expected; put it in quotes: "100"',
        ),
        (
            {"federation": {"drop": "1"}},
            'federation.drop = "1": a list is expected, such as ["a", "b"]',
        ),
        (
            {"method.name": "fedavg"},
            '\'method.name\': options stand in the table of their section: {"method": {"name": …}}',
        ),
        (
            {"train": {"lr": datetime.date(2026, 1, 2)}},
            "train.lr = 2026-01-02: a number is expected",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_do_about_it(tables, words):
    with pytest.raises(CafedclError) as error:
        resolve(tables)
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("engine.threads", 100_000, "at least 1 and at most 1,024"),
        ("engine.threads", 0, "at least 1 and at most 1,024"),
        ("engine.workers", 100_000, "at least 0 and at most 1,024"),
        ("engine.streams", -1, "at least 0 and at most 64"),
        ("engine.deadline", 1e9, "greater than 0 and at most 31,536,000"),
        ("train.epochs", 10**9, "at least 1 and at most 10,000"),
        ("train.batch_size", 10**6, "at least 0 and at most 65,536"),
        ("evaluate.batch", 10**6, "at least 1 and at most 65,536"),
        ("federation.rounds", 10**12, "at least 1 and at most 1,000,000"),
        ("federation.clients", 10**8, "at least 0 and at most 10,000,000"),
        ("model.width", 65.0, "greater than 0 and at most 64"),
        ("run.seed", -1, "at least 0 and at most 9,223,372,036,854,775,807"),
    ],
)
def test_a_number_that_would_crash_is_refused_with_its_limits(name, value, limits):
    section, _, key = name.partition(".")
    with pytest.raises(CafedclError) as caught:
        resolve({section: {key: value}})
    assert str(caught.value) == f"{name} = {value}: it must be {limits}"


@pytest.mark.parametrize("value", [1e39, 1e-39, 5e-324, 1.7e308])
def test_a_number_that_no_tensor_holds_is_refused(value):
    with pytest.raises(CafedclError, match=r"train.lr = .*: its size must be between 1.2e-38 and"):
        resolve({"train": {"lr": value}})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"kind": "file", "file": "x", "ir": 10.0},
            "split.ir = 10.0: the split 'file' does not use it; leave it out, or choose another "
            "kind of split",
        ),
        (
            {"kind": "iid", "alpha": 0.5},
            "split.alpha = 0.5: the split 'iid' does not use it; leave it out, or choose "
            "dirichlet or quantity",
        ),
        (
            {"kind": "quantity", "form": "class"},
            "split.form = \"class\": the split 'quantity' does not use it; leave it out, or "
            "choose dirichlet",
        ),
        (
            {"kind": "file"},
            "split.file: the path is missing; for example: --split file:split.csv",
        ),
    ],
)
def test_a_split_refuses_what_it_does_not_use(table, words):
    with pytest.raises(CafedclError) as caught:
        resolve({"split": table})
    assert str(caught.value) == words


def test_the_flag_of_a_split_replaces_another_kind_in_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[split]\nkind = 'dirichlet'\nalpha = 0.5\nir = 5\nvalidation = 0.2\n")
    split = gather(path, split="pathological:3").split
    assert (split.kind, split.classes, split.alpha) == ("pathological", 3, 0.1)
    assert (split.ir, split.validation) == (5.0, 0.2)


def test_a_recorded_config_may_hold_what_had_no_effect(tmp_path):
    path = tmp_path / "config.toml"
    lines = (
        "format = 2",
        "[split]\nkind = 'iid'\nalpha = 0.5\nir = 2.0",
        "[federation]\nrounds = 3\ndrop = ['2:0', '3:1']",
    )
    path.write_text("\n".join(lines))
    config = gather(path)
    assert (config.split.alpha, config.split.ir) == (0.1, 2.0)
    assert config.federation.drop == ("2:0",)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "notepad.toml"
    path.write_text("[run]\nseed = 3\n", encoding="utf-8-sig")
    assert read_file(path) == {"run": {"seed": 3}}


def test_whoever_changes_the_tables_of_a_file_changes_only_their_own(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[federation]\ndrop = ['1:0']\n", encoding="utf-8")
    read_file(path)["federation"]["drop"].append("2:0")
    assert read_file(path) == {"federation": {"drop": ["1:0"]}}


@pytest.mark.parametrize("content", ["\0" * 40, "seed = 1\n\0\0\0", "seed = \0\0\0\n[run]\n", "\0"])
def test_a_file_that_lost_its_content_in_a_power_cut_is_called_damaged(content, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(CafedclError, match=r"config\.toml: damaged: .*zero bytes.* from a backup"):
        read_file(file)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_another_encoding_is_one_line(encoding, tmp_path):
    path = tmp_path / "other.toml"
    path.write_text("[run]\nseed = 3\n", encoding=encoding)
    said = refusal(read_file, path)
    assert "save it as UTF-8" in said
    assert in_one_line(said)


def test_whole_numbers_are_numbers_and_lists_become_tuples():
    config = resolve(
        {"train": {"lr": 1}, "method": {"w": [1, 0, 0]}, "federation": {"drop": ["3:0,4"]}}
    )
    assert type(config.train.lr) is float
    assert config.method.options.w == (1.0, 0.0, 0.0)
    assert config.federation.drop == ("3:0,4",)


def test_a_preset_sets_options_and_your_own_values_win():
    config = resolve({"method": {"name": "cafedcl:literal", "align": "sample"}})
    assert config.method.options.geo == "literal"
    assert config.method.options.epsilon == 1e-8
    assert config.method.options.align == "sample"


@pytest.mark.parametrize("preset", sorted(find_method("cafedcl")[0].presets))
def test_every_preset_changes_the_options(preset):
    assert (
        resolve({"method": {"name": f"cafedcl:{preset}"}}).method.options
        != resolve({}).method.options
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=0.05", {"train": {"lr": 0.05}}),
        (" train.lr = 5e-2 ", {"train": {"lr": 0.05}}),
        ("split.kind=iid", {"split": {"kind": "iid"}}),
        ('split.kind="iid"', {"split": {"kind": "iid"}}),
        ("method.w=[1, 0, 0]", {"method": {"w": [1, 0, 0]}}),
        ("store.notes=false", {"store": {"notes": False}}),
        ("data.name=a = b", {"data": {"name": "a = b"}}),
        ("data.name=1\nx = 2", {"data": {"name": "1\nx = 2"}}),
        ("data.name=", {"data": {"name": ""}}),
    ],
)
def test_a_setting_is_toml_or_a_bare_word(text, expected):
    tables = {}
    assign(tables, text)
    assert tables == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", {"kind": "iid"}),
        ("dirichlet:0.1", {"kind": "dirichlet", "alpha": 0.1}),
        ("pathological:2,ir=10", {"kind": "pathological", "classes": 2, "ir": 10}),
        ("dirichlet:alpha=1,form=class", {"kind": "dirichlet", "alpha": 1, "form": "class"}),
        ("dirichlet", {"kind": "dirichlet"}),
    ],
)
def test_a_split_in_short_is_a_section(text, expected):
    assert parse_split(text) == expected


@pytest.mark.parametrize("text", ["iid:3", "dirichlet:0.1,0.2", "pathological:2,3"])
def test_a_split_with_a_stray_value_is_refused(text):
    with pytest.raises(CafedclError, match="is not key=value; for example"):
        parse_split(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("dirichlet:0.1,alpha=0.2", "alpha"),
        ("dirichlet:alpha=0.2,alpha=0.2", "alpha"),
        ("pathological:2,classes=2", "classes"),
        ("iid:kind=natural", "kind"),
        ("file:a,file=b", "file"),
    ],
)
def test_a_split_with_the_same_option_twice_is_refused(text, key):
    with pytest.raises(CafedclError, match=f"{key} is given twice; leave one of them out"):
        parse_split(text)


def test_settings_win_over_flags_and_flags_over_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        "[federation]\nclients = 3\nrounds = 4\n[run]\nseed = 5\n[method]\nname = 'fedavg'\n"
    )
    config = gather(
        path, clients=6, rounds=7, split="iid", settings=["federation.rounds=8", "split.ir=2"]
    )
    assert (config.federation.clients, config.federation.rounds, config.run.seed) == (6, 8, 5)
    assert (config.method.name, config.split.kind, config.split.ir) == ("fedavg", "iid", 2.0)


def test_numbers_of_numpy_are_numbers():
    numbers = np.array([3])
    config = resolve(
        {
            "run": {"seed": numbers[0]},
            "train": {"lr": np.float64(0.5), "momentum": np.int64(0)},
            "evaluate": {"shots": [np.int64(50), np.int32(5)]},
        }
    )
    values = (config.run.seed, config.train.lr, config.train.momentum, *config.evaluate.shots)
    assert values == (3, 0.5, 0.0, 50, 5)
    assert [type(value) for value in values] == [int, float, float, int, int]
    with pytest.raises(CafedclError, match=r"run.seed = True: a whole number is expected"):
        resolve({"run": {"seed": np.bool_(True)}})


def test_every_option_says_what_it_means_and_its_default_fits_its_limits():
    for section in ("method", *SECTIONS):
        for field in fields_of(section):
            assert len(meaning(field)) > 3
            assert field.metadata["limits"].problem(field.default) is None, field.name


def test_limits_are_printed_beside_the_meaning():
    @dataclass(frozen=True)
    class Some:
        size: int = option(3, "how big", low=1, high=9)
        kind: str = option("a", "which", choices=("a", "b"))
        rate: float = option(0.1, "how fast", above=0.0)
        free: str = option("", "anything")

    assert [meaning(field) for field in dataclasses.fields(Some)] == [
        "how big (≥ 1, ≤ 9)",
        "which (a | b)",
        "how fast (> 0)",
        "anything",
    ]
    assert to_plain(read_options(Some, {"size": 9, "kind": "b"}, "some")) == {
        "size": 9,
        "kind": "b",
        "rate": 0.1,
        "free": "",
    }


@given(
    st.floats(allow_nan=True) | st.integers(-(10**20), 10**20), st.floats(-5, 0), st.floats(1, 5)
)
@settings(max_examples=60)
def test_a_value_is_refused_exactly_outside_its_limits(value, low, high):
    inside = low <= value <= high and (value == 0 or abs(value) >= TINY)
    assert (Limits(low, high).problem(value) is None) == inside
    assert (Limits(low, high).problem((low, value)) is None) == inside


def test_a_far_off_word_gets_the_whole_list():
    assert nearest("zzz", ["beta", "alpha"]) == "available: alpha, beta"
    assert nearest("alpa", ["beta", "alpha"]) == "did you mean 'alpha'?"


@dataclass(frozen=True)
class Rare:
    common: int = option(1, "what many people need")
    rare: str = option("a", "what few people need", choices=("a", "b"), advanced=True)


def test_an_advanced_option_is_left_out_of_help_while_it_has_its_default() -> None:
    short = "\n".join(toml_section("rare", Rare(), explain=True, advanced=False))
    assert "rare = " not in short
    assert "# 1 advanced options are not shown; add --advanced to see them" in short
    assert 'rare = "b"' in "\n".join(toml_section("rare", Rare(rare="b"), advanced=False))
    assert 'rare = "a"' in "\n".join(toml_section("rare", Rare(), explain=True, advanced=True))
    assert 'rare = "a"' in "\n".join(toml_section("rare", Rare())), "a run's config is complete"


def made(**fields) -> type:
    """Options of somebody's own: a type and a default for every field."""
    return dataclasses.make_dataclass(
        "Own", [(name, kind, default) for name, (kind, default) in fields.items()], frozen=True
    )


class NoDataclass:
    strength = 0.1


READABLE = {
    "rate": (float, option(0.1, "a rate", low=0.0)),
    "number": (int, option(2, "a number")),
    "mode": (str, option("a", "a mode", choices=("a", "b"))),
    "on": (bool, option(True, "a switch")),
    "steps": (tuple[int, ...], option((1, 2), "steps")),
    "pair": (tuple[float, float], option((0.5, 1.0), "a pair", high=1.0)),
}


@pytest.mark.parametrize("options", [made(**READABLE), made()], ids=["some", "none"])
def test_options_of_ones_own_that_a_config_can_hold_are_taken(options):
    refuse_unreadable(options, "method 'm:Own'")
    text = "\n".join(toml_section("method", options()))
    again = read_options(options, tomllib.loads(text)["method"], "method")
    assert again == options()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (NoDataclass, "its Options are not a dataclass"),
        (made(mu=(float, option(0.5, "x")))(), "its Options are not a dataclass"),
        (made(mu=(float, 0.5)), "its option 'mu' is not declared with `option`"),
        (made(name=(str, option("a", "x"))), "its option 'name' has the name of a key"),
        (made(mu=(int, option(0.5, "x"))), "'mu': its default = 0.5: a whole number is expected"),
        (made(mu=(float, option(0.5, "x", low=1.0))), "default = 0.5: it must be at least 1"),
        (made(mode=(str, option("c", "x", choices=("a", "b")))), 'its default = "c": '),
        (made(f=(object, option(None, "x"))), "a config cannot hold its type"),
        (made(mus=(list, option(None, "x"))), "a config cannot hold its type"),
        (made(mus=(list, dataclasses.field(default_factory=list))), "'mus' is not declared with"),
        (made(both=(tuple[int, str], option((1, "a"), "x"))), "a config cannot hold its type"),
        (made(mu=("Unknown", option(1, "x"))), "a type of its Options cannot be read: name"),
    ],
)
def test_options_that_a_run_could_not_be_read_again_with_are_refused(options, said):
    with pytest.raises(CafedclError) as told:
        refuse_unreadable(options, "method 'm:Own'")
    assert str(told.value).startswith("method 'm:Own': ")
    assert said in str(told.value)
