"""Names in any script in figures."""

import io
import warnings
from pathlib import Path

import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure

from cafedcl.core import fonts
from cafedcl.core.fonts import OTHERS, USUAL, lacking, save_figure

CHINESE = "皮膚病"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "ALREADY_NAMED", set())


def figure_of(*names: str) -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.set_xticks(range(len(names)), names)
    return figure


def test_which_characters_a_font_lacks() -> None:
    assert lacking("melanoma", [USUAL]) == ""
    assert lacking("Ärzte Врач γ", [USUAL]) == ""
    assert lacking(f"{CHINESE} a {CHINESE}", [USUAL]) == "".join(sorted(CHINESE))


def test_characters_without_a_font_are_one_line_and_not_a_warning_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(font_manager, "get_font_names", lambda: [USUAL])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure_of("naevus", CHINESE), tmp_path / "a.png")
        save_figure(figure_of(CHINESE), tmp_path / "b.svg")
    _, err = capsys.readouterr()
    assert err.startswith("no font here has ")
    assert len(err.splitlines()) == 1, "the second figure has no other characters"
    save_figure(figure_of("痣"), tmp_path / "c.png")
    assert "痣" in capsys.readouterr().err


def test_an_installed_font_that_has_them_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DejaVu Sans Mono stands in for the font, because every machine has it."""
    monkeypatch.setattr(fonts, "OTHERS", ("DejaVu Sans Mono", "No Such Font"))
    monkeypatch.setattr(fonts, "USUAL", "cmsy10")
    figure = figure_of("Врач", "a")
    save_figure(figure, io.BytesIO(), format="png")
    shown, plain = figure.axes[0].get_xticklabels()
    assert shown.get_fontfamily() == ["cmsy10", "DejaVu Sans Mono"]
    assert plain.get_fontfamily() == ["sans-serif"]
    assert capsys.readouterr().err == ""


def test_fonts_are_named_once() -> None:
    assert len({*OTHERS, USUAL}) == len(OTHERS) + 1
