"""A run in Python: how it looks, what it draws, and how it reads images."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.federation.result import Run
from cafedcl.federation.rounds import Federation
from cafedcl.federation.runs import _result


@pytest.fixture(scope="module")
def run(tiny: Callable[..., Federation]) -> Run:
    federation = tiny("fedavg", federation__participation=1.0, evaluate__full=True)
    federation.run()
    return _result(federation, None)


def test_a_run_is_told_in_one_short_line(run: Run) -> None:
    assert repr(run).startswith("<Run: fedavg on digits, 2 of 2 rounds, accuracy ")
    assert len(repr(run)) < 120
    assert "\n" not in repr(run)


def test_a_notebook_gets_a_table_and_a_curve(run: Run) -> None:
    page = run._repr_html_()
    assert "<td>balanced accuracy</td>" in page
    assert "<polyline" in page
    assert "recall per class in %: 0 " in page


@pytest.mark.parametrize("what", ["curves", "recall", "confusion", "reliability", "clients"])
def test_figures_can_be_drawn_and_are_shown_by_a_notebook(run: Run, what: str) -> None:
    figure = getattr(run, f"plot_{what}")()
    assert figure.axes
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_dollar_sign_in_a_name_is_no_formula(run: Run) -> None:
    odd = replace(run, names=("$\\frac{$", *run.names[1:]))
    for figure in (odd.plot_recall(), odd.plot_confusion()):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_what_was_not_stored_cannot_be_drawn(tiny: Callable[..., Federation]) -> None:
    federation = tiny("fedavg")
    federation.step()
    with pytest.raises(CafedclError, match="has no 'scores/server/bins' to draw"):
        _result(federation, None).plot_reliability()


def test_recall_is_that_of_the_confusion_matrix(run: Run) -> None:
    table = run.tables["server/confusion"].numpy()
    assert list(run.recall.values()) == pytest.approx(table.diagonal() / table.sum(1))


def test_the_table_of_clients_agrees_with_the_scores(run: Run) -> None:
    table = run.clients
    assert table["images"].tolist() == run.counts.sum(1).tolist()
    scores = run.records[-1]
    assert table["server"].mean() == pytest.approx(scores["server"]["client_mean"])
    assert table["own"].mean() == pytest.approx(scores["own"]["client_mean"])
    assert table["own_all"].mean() == pytest.approx(scores["own"]["accuracy"])


def test_a_method_without_a_servers_model_has_no_column_for_it(
    tiny: Callable[..., Federation],
) -> None:
    federation = tiny("local", federation__participation=1.0)
    federation.run()
    assert list(_result(federation, None).clients) == ["images", "own", "own_all"]


def test_a_file_a_folder_and_several_files_are_classified(
    run: Run, digits: Dataset, tmp_path: Path
) -> None:
    for number in range(3):
        Image.fromarray(digits.test_x[number, 0].numpy()).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no image")
    expected = run.predict(digits.test_x[:3])
    alone = run.predict(str(tmp_path / "1.png"))
    assert alone.names == expected.names[1:2]
    assert alone.files == [tmp_path / "1.png"]
    whole = run.predict(tmp_path)
    assert whole.names == expected.names
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"x")
    some = run.predict([tmp_path / "0.png", broken])
    assert some.names == expected.names[:1]
    assert list(some.failed) == [broken]
    with pytest.raises(CafedclError, match="not an image"):
        run.predict(broken)
    with pytest.raises(CafedclError, match="images contain NaN"):
        run.predict(np.full((2, 8, 8), np.nan))
    with pytest.raises(CafedclError, match=r"floats in \[0, 1\], not bool"):
        run.predict(np.ones((2, 8, 8), bool))


def test_predictions_are_a_table(run: Run, digits: Dataset) -> None:
    found = run.predict(digits.test_x[:4])
    table = found.frame()
    assert list(table["class"]) == found.names
    assert np.allclose(table[[f"p[{name}]" for name in run.names]].sum(axis=1), 1, atol=1e-5)
    assert [len(best) for best in found.top(3)] == [3] * 4
    assert found.top(99)[0][0][0] == found.names[0]
    with pytest.raises(CafedclError, match="top: 0 classes: 1 or more is expected"):
        found.top(0)


def test_many_images_come_in_batches(run: Run, digits: Dataset) -> None:
    batch = run.config.evaluate.batch
    images = digits.train_x[: batch + 7]
    assert len(run.predict(images)) == batch + 7
