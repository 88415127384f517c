import base64
import cProfile
import json
import pstats
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cafedcl.cli import report as commands
from cafedcl.core.errors import CafedclError
from cafedcl.report import figures
from cafedcl.report.collect import collect
from cafedcl.report.figures import write_figures
from cafedcl.report.page import block, pack_array, static, to_json_values, write_report
from cafedcl.report.palette import MARKERS, SERIES_STYLES, series_style
from cafedcl.report.runs import read_runs

Maker = Callable[..., Path]


def data_of(page: Path) -> dict[str, object]:
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(
        r'<script type="application/json" id="report-data">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found)  # type: ignore[no-any-return]


def test_the_data_are_one_valid_block(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", extras=("server", "confidence", "prototypes"))
    write_report(read_runs([tmp_path]), tmp_path / "out" / "report.html")
    data = data_of(tmp_path / "out" / "report.html")
    (group,) = data["groups"]  # type: ignore[misc]
    assert group["title"] == "digits, dirichlet:0.1, 6 clients"
    assert group["ranking"]["server"]["rows"][0]["accuracy"]["mean"] == 90
    assert group["loop"] == []


def test_nothing_can_break_out_of_the_block() -> None:
    text = block({"name": "</script><script>alert(1)</script>", "value": float("nan")})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><script>alert(1)</script>", "value": None}


def test_the_page_asks_nobody_for_anything(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    write_report(read_runs([tmp_path]), tmp_path / "report.html")
    text = (
        (tmp_path / "report.html").read_text(encoding="utf-8").replace(static("echarts.min.js"), "")
    )
    assert not re.findall(
        r"""(?:src|href)\s*=\s*["']?(?!#|data:)[\w/.:]+""", text.split("<script>")[0]
    )
    assert "default-src 'none'" in text
    assert not re.findall(r"\b(?:fetch|XMLHttpRequest|import)\s*\(", text)
    assert "@" not in re.sub(r"@(?:media|page)\b|\[\\w@", "", text.split('id="report-data"')[0])


def test_numbers_are_rounded_and_tables_packed() -> None:
    assert to_json_values(
        {"a": 1 / 3, "b": 12345678.9, "c": np.float32(2), "d": (np.nan, None, True)}
    ) == {
        "a": 0.33333,
        "b": 12346000,
        "c": 2,
        "d": [None, None, True],
    }
    assert to_json_values(np.array([1.5, np.nan])) == [1.5, None]


def test_packed_tables_come_back() -> None:
    values = np.array([[0.0, 0.5], [np.nan, -2.0]])
    packed = pack_array(values)
    steps = np.frombuffer(base64.b64decode(packed["b64"]), "<u2").reshape(packed["shape"])
    back = np.where(steps == 65535, np.nan, packed["low"] + packed["step"] * steps)
    np.testing.assert_allclose(back, values, atol=2.5 / 65534)
    counts = pack_array(np.array([[3, 0], [65000, 7]]))
    assert np.frombuffer(base64.b64decode(counts["b64"]), "<u2").tolist() == [3, 0, 65000, 7]
    assert (counts["low"], counts["step"]) == (0.0, 1.0)
    assert pack_array(np.full((2, 2), np.nan))["step"] == 1.0


def test_the_colours_stay_what_they_are() -> None:
    assert series_style("cafedcl").colour == "#D55E00"
    assert series_style("fedavg").colour == "#0A7ABF"
    assert series_style("my.module:Method") == series_style("my.module:Method")
    assert series_style("my.module:Method").colour == "#A36F9B", (
        "a look depends on the name alone, today and tomorrow"
    )
    assert len({(one.colour, one.symbol) for one in SERIES_STYLES.values()}) == len(SERIES_STYLES)
    assert len({one.colour for one in SERIES_STYLES.values()}) == len(SERIES_STYLES)
    assert {one.symbol for one in SERIES_STYLES.values()} <= MARKERS.keys()


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("name", SERIES_STYLES)
def test_every_colour_can_be_seen_on_both_themes(name: str) -> None:
    """WCAG contrast against the cards of both themes."""
    level = luminance(series_style(name).colour)
    for card in ("#ffffff", "#161b22"):
        low, high = sorted((level, luminance(card)))
        assert (high + 0.05) / (low + 0.05) > 2.0, card


def test_the_page_draws_with_the_symbols_of_the_palette() -> None:
    own = {"circle", "rect", "triangle", "diamond"}
    for symbol in MARKERS.keys() - own:
        assert f'{symbol}: "path://' in static("charts.js")


def test_names_that_look_like_placeholders_stay_as_they_are(
    make_run: Maker, tmp_path: Path
) -> None:
    names = ["@style@", "@data@", "@title@", "@nobody@"]
    run = make_run(tmp_path / "@script@", names=names, data__name="@style@")
    out = tmp_path / "report.html"
    write_report(read_runs([run]), out)
    data: Any = data_of(out)
    assert data["groups"][0]["map"]["names"] == names
    text = out.read_text(encoding="utf-8")
    assert "<title>cafedcl: @style@, " in text
    assert text.count("<style>") == 1


def test_names_with_bytes_that_are_not_text_can_be_written(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "caf\udce9", names=["a\x1b[31m", "b", "c", "d"])
    out = tmp_path / "report.html"
    write_report(read_runs([run]), out)
    data: Any = data_of(out)
    assert data["runs"][0]["path"].endswith("caf\ufffd")
    assert data["groups"][0]["map"]["names"][0] == "a\u241b[31m"


def test_nothing_to_report_is_one_clear_line(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", done=0)
    summary = read_runs([tmp_path])
    with pytest.raises(CafedclError, match="no run has a scored round to show"):
        write_report(summary, tmp_path / "report.html")
    with pytest.raises(CafedclError, match="no run has a scored round to show"):
        write_figures(summary, tmp_path / "figures")


def test_a_place_that_cannot_be_written_is_one_clear_line(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(CafedclError, match="cannot be written"):
        commands.report([run], tmp_path / "file" / "report.html")
    with pytest.raises(CafedclError, match="cannot be written"):
        commands.figures([run], tmp_path / "file")
    with pytest.raises(CafedclError, match="--format gif"):
        commands.figures([run], tmp_path / "figures", "gif")


def test_the_command_names_what_was_set_aside(
    make_run: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", "moon", done=0)
    commands.report([tmp_path], tmp_path / "report.html")
    out = capsys.readouterr().out
    assert "0 of 3 rounds are done" in out
    assert "written:" in out
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


def test_every_figure_is_written(make_run: Maker, tmp_path: Path) -> None:
    everything = ("server", "confidence", "prototypes", "loop", "scores")
    make_run(tmp_path / "runs" / "a", "cafedcl", extras=everything, method__lam_geo=1.0)
    make_run(tmp_path / "runs" / "b", "cafedcl:no-geo")
    make_run(tmp_path / "runs" / "c", "cafedcl", 1, extras=everything, method__lam_geo=1.0)
    make_run(tmp_path / "runs" / "d", "cafedcl", method__lam_geo=3.0)
    make_run(tmp_path / "runs" / "e", "fedproto", extras=("prototypes",))
    commands.figures([tmp_path / "runs"], tmp_path / "out", "svg")
    curves = {
        f"curves-{protocol}-{axis}"
        for protocol in ("server", "own")
        for axis in ("rounds", "bytes", "seconds")
    }
    both = {
        "ranking",
        "clients",
        "shots",
        "recall",
        "reliability",
        "ablation-cafedcl",
        "sensitivity-cafedcl-method.lam_geo",
    }
    wanted = {f"{name}-{protocol}" for name in both for protocol in ("server", "own")} | curves
    wanted |= {"data", "distances", "cost", "confusion-cafedcl-no-geo", "prototypes-fedproto"}
    wanted |= {f"{name}-cafedcl" for name in ("confusion", "confidence", "prototypes", "loop")}
    assert {path.stem for path in (tmp_path / "out").iterdir()} == wanted
    assert all(path.read_bytes().startswith(b"<?xml") for path in (tmp_path / "out").iterdir())


def test_without_a_servers_model_there_are_no_figures_of_it(
    make_run: Maker, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "a", extras=())
    (group,) = collect(read_runs([run]))["groups"]
    names = {name for name, _ in figures.setting_figures(group)}
    assert names >= {"data", "clients-own", "cost"}
    assert not [name for name in names if "server" in name]


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_in_other_formats(
    make_run: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, start: bytes
) -> None:
    """One with an image and one with lines stand for all."""
    whole = figures.setting_figures
    monkeypatch.setattr(
        figures,
        "setting_figures",
        lambda group: ((name, one) for name, one in whole(group) if name in ("data", "cost")),
    )
    run = make_run(tmp_path / "a", extras=())
    written = write_figures(read_runs([run]), tmp_path / "out", form)
    assert [path.name for path in written] == [f"data.{form}", f"cost.{form}"]
    assert all(path.read_bytes().startswith(start) for path in written)


def build(make_run: Maker, folder: Path, rounds: int, clients: int) -> tuple[float, int]:
    """Write the report of six runs, and return the calls of functions that this takes for each
    round of a run, which a busy machine does not change, and the size of the page.
    """
    for m in range(3):
        first = make_run(
            folder / f"{m}-0",
            f"method{m}",
            rounds=rounds,
            clients=clients,
            classes=10,
            extras=("server", "confidence", "prototypes"),
        )
        other = folder / f"{m}-1"
        other.mkdir()
        for name in ("data.safetensors", "metrics.jsonl", "environment.json"):
            (other / name).write_bytes((first / name).read_bytes())
        config = (first / "config.toml").read_text().replace("seed = 0", "seed = 1")
        (other / "config.toml").write_text(config)
    with cProfile.Profile() as profile:
        write_report(read_runs([folder]), folder / "report.html")
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls / (6 * rounds), (folder / "report.html").stat().st_size


def test_a_large_report_takes_no_more_work_for_each_round_and_is_still_small(
    make_run: Maker, tmp_path: Path
) -> None:
    # What is imported when the first report is written is no part of the work.
    build(make_run, tmp_path / "first", rounds=1, clients=2)
    calls, size = build(make_run, tmp_path / "small", rounds=25, clients=50)
    assert calls < 2000
    assert size < 4_000_000
    many_calls, large_size = build(make_run, tmp_path / "large", rounds=200, clients=100)
    assert many_calls <= calls
    assert large_size < 5_000_000


def test_a_file_that_is_no_report_is_not_replaced(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    own = tmp_path / "index.html"
    own.write_text("<!doctype html>\n<title>My page</title>\n", encoding="utf-8")
    for file in (run / "metrics.jsonl", own):
        before = file.read_bytes()
        with pytest.raises(CafedclError, match="exists and is no report of cafedcl; choose"):
            write_report(read_runs([run]), file)
        assert file.read_bytes() == before


def test_a_report_replaces_a_report(make_run: Maker, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    for rounds in (1, 2):
        write_report(read_runs([make_run(tmp_path / str(rounds), rounds=rounds)]), out)
    assert f'"{tmp_path / "1"}' not in out.read_text(encoding="utf-8")
