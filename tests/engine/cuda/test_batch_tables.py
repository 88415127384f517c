import numpy as np
import torch

from cafedcl.engine.cuda.batch_tables import COPIES_IN_FLIGHT, BatchTables
from cafedcl.engine.schedule import Schedule


def schedule(first: int, steps: int, mark: object = None) -> Schedule:
    tables = {
        "rows": first + torch.arange(steps * 3).view(steps, 3),
        "rate": torch.full((steps,), 0.5 + first),
    }
    return Schedule(tables, np.ones(steps), {} if mark is None else {"rate": mark})


def test_tables_stay_where_they_are_and_hold_the_schedule() -> None:
    feed = BatchTables(schedule(0, 2), 5, torch.device("cpu"))
    before = {name: table.data_ptr() for name, table in feed.tables.items()}
    for first, steps in ((7, 5), (100, 2), (3, 4)):
        given = schedule(first, steps)
        feed.fill(given)
        for name, table in given.tables.items():
            assert torch.equal(feed.tables[name][:steps], table)
            assert feed.tables[name].dtype == table.dtype
            assert feed.tables[name].shape[0] == 5
    assert {name: table.data_ptr() for name, table in feed.tables.items()} == before


def test_a_table_with_the_mark_of_the_one_that_is_there_is_not_copied() -> None:
    feed = BatchTables(schedule(0, 2), 2, torch.device("cpu"))
    feed.fill(schedule(1, 2, mark="one"))
    feed.fill(schedule(2, 2, mark="one"))
    assert feed.tables["rate"].tolist() == [1.5, 1.5]
    assert feed.tables["rows"][0].tolist() == [2, 3, 4]
    feed.fill(schedule(3, 2, mark="other"))
    assert feed.tables["rate"].tolist() == [3.5, 3.5]
    feed.fill(schedule(4, 2))
    assert feed.tables["rate"].tolist() == [4.5, 4.5]


def test_a_page_is_not_written_again_while_its_copy_may_be_on_its_way() -> None:
    feed = BatchTables(schedule(0, 1), 1, torch.device("cpu"))
    used = []
    for first in range(2 * COPIES_IN_FLIGHT):
        feed.fill(schedule(first, 1))
        used.append(feed.pages[0]["rows"][0].data_ptr())
    assert len(set(used[:COPIES_IN_FLIGHT])) == COPIES_IN_FLIGHT
    assert used[:COPIES_IN_FLIGHT] == used[COPIES_IN_FLIGHT:]
