"""Tables of many clients: stored with the rows of those that took part, and read as they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cafedcl import api
from cafedcl.core.tensors import unpack
from cafedcl.federation import sparse_tables, sparse_writing
from cafedcl.federation.callback import Callback
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.sparse_tables import filled
from cafedcl.federation.sparse_writing import (
    known_rows,
    whole_tables,
    with_all_rows,
    without_empty_rows,
)
from cafedcl.functional import metrics
from cafedcl.report.evaluations import read_evaluations
from cafedcl.report.runs import read_runs
from cafedcl.task.resolve import resolve


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """From three clients on, tables are stored without empty rows."""
    for module in (sparse_tables, sparse_writing, metrics):
        monkeypatch.setattr(module, "MANY_CLIENTS", 3)


def some_tables() -> dict[str, torch.Tensor]:
    nan = torch.nan
    return {
        "own/all/score": torch.tensor([nan, 0.5, nan, 0.25]),
        "own/all/recall": torch.tensor([[nan, nan], [0.5, nan], [nan, nan], [0.0, 1.0]]),
        "own/round": torch.tensor([-1, 3, -1, 0]),
        "notes/confidence": torch.full((4, 2), nan),
        "server/confusion": torch.tensor([[3, 1], [0, 0]], dtype=torch.int32),
        "loop/drift": torch.tensor([0.5, nan]),
    }


@pytest.mark.usefixtures("few_are_many")
def test_only_clients_with_a_value_are_stored_and_the_tables_come_back() -> None:
    tables = some_tables()
    stored = without_empty_rows(tables, 4)
    assert stored["own/all/recall"].shape == (2, 2)
    assert stored["rows/own/all/score"].tolist() == [1, 3]
    assert stored["notes/confidence"].shape == (0, 2)
    back = with_all_rows(stored)
    assert back.keys() == tables.keys()
    for name, value in tables.items():
        torch.testing.assert_close(back[name], value, rtol=0, atol=0, equal_nan=True)
        assert back[name].dtype == value.dtype


def test_tables_of_few_clients_are_stored_whole() -> None:
    tables = some_tables()
    assert without_empty_rows(tables, 4) is tables
    assert with_all_rows(tables) is tables


@pytest.mark.usefixtures("few_are_many")
def test_accuracies_that_follow_from_the_confusion_matrix_are_not_stored() -> None:
    counts = torch.tensor([[2, 2], [4, 0], [0, 1], [1, 3]])
    confusion = torch.tensor([[3, 1], [0, 0]])
    expected = metrics.client_accuracy(metrics.recalls(confusion), counts).float()
    tables = {"server/confusion": confusion.int(), "server/clients": expected}
    stored = without_empty_rows(tables, 4, follows=True)
    assert "server/clients" not in stored
    found = whole_tables(stored, counts.numpy())["server/clients"]
    torch.testing.assert_close(found, expected, equal_nan=True)
    kept = without_empty_rows(tables, 4)
    assert whole_tables(kept, counts.numpy())["server/clients"] is not None


@pytest.mark.parametrize(
    ("rows", "number"), [([0, 4], 4), ([-1, 1], 4), ([1], 4), ([[0, 1]], 4), ([0.0, 1.0], 4)]
)
def test_rows_that_do_not_fit_are_refused(rows: Any, number: int) -> None:
    with pytest.raises(ValueError, match="own/all/score: its rows are not"):
        filled("own/all/score", np.zeros(2), np.array(rows), np.array([number]))


def test_clients_with_any_number_are_known() -> None:
    table = torch.tensor([[torch.nan, 0.0], [torch.nan, torch.nan]])
    assert known_rows(table).tolist() == [0]
    assert known_rows(torch.tensor([-1, 0])).tolist() == [1]


def run_in(folder: Path, *callbacks: Callback) -> None:
    tables = {
        "method": {"name": "cafedcl"},
        "model": {"name": "mlp", "width": 0.1},
        "train": {"epochs": 1, "iterations": 1},
        "federation": {"clients": 6, "rounds": 3, "participation": 0.34},
        "engine": {"workers": 1},
        "store": {"checkpoint_every": 1},
    }
    api.start(resolve(tables), folder, callbacks)


class Interrupt(Callback):
    """Presses Ctrl-C when the third round begins."""

    def round_began(self, federation: Federation, clients: int) -> None:
        if federation.round == 2:
            raise KeyboardInterrupt


def shown(folder: Path) -> list[dict[str, np.ndarray]]:
    """Return what a report reads of a run."""
    (run,) = read_runs([folder]).runs
    found = read_evaluations(run)
    assert found.problems == []
    return [each.tables for each in found.rounds]


def test_a_run_of_many_clients_is_resumed_loaded_and_shown_like_another(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_in(tmp_path / "whole")
    request.getfixturevalue("few_are_many")
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path / "sparse", Interrupt())
    api.resume(tmp_path / "sparse")
    one = api.load(tmp_path / "whole")
    other = api.load(tmp_path / "sparse")
    for mine, yours in zip(one.records, other.records, strict=True):
        assert mine["own"].keys() == yours["own"].keys()
        for name, value in mine["own"].items():
            assert yours["own"][name] == (value and pytest.approx(value, rel=1e-9)), name
    assert all(torch.equal(other.state[name], value) for name, value in one.state.items())
    assert one.tables.keys() == other.tables.keys()
    for name, value in one.tables.items():
        torch.testing.assert_close(other.tables[name], value, equal_nan=True)
    for mine, yours in zip(shown(tmp_path / "whole"), shown(tmp_path / "sparse"), strict=True):
        assert mine.keys() == yours.keys()
        for name, table in mine.items():
            there = ~np.isnan(yours[name]) if name.startswith("own/") else ...
            np.testing.assert_allclose(yours[name][there], table[there], rtol=1e-6)
    last = shown(tmp_path / "sparse")[-1]
    for name, table in shown(tmp_path / "whole")[-1].items():
        np.testing.assert_allclose(last[name], table, rtol=1e-6, err_msg=name)
    for number, record in enumerate(one.records[:2]):
        file = RunFolder(tmp_path / "sparse").evaluation_file(number)
        stored, _ = unpack(file.read_bytes())
        rows = stored["rows/own/all/recall"].tolist()
        assert rows == record["participants"], "a round stores its own participants"
