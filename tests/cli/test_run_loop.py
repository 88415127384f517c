import sys
from collections import Counter, defaultdict

import pytest
import torch

from cafedcl.cli import run_loop
from cafedcl.cli.run_loop import forget_compiled_code
from cafedcl.engine.cuda.step import RECOMPILE_LIMIT


@pytest.fixture
def resets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often compiled code was forgotten."""
    # Imported here, because it takes seconds in every process that collects tests.
    import torch._dynamo.utils

    found: list[int] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: found.append(1))
    return found


@pytest.mark.parametrize(
    ("graphs", "forgotten"), [(0, 0), (RECOMPILE_LIMIT // 2 - 1, 0), (RECOMPILE_LIMIT // 2, 1)]
)
def test_compiled_code_is_kept_from_run_to_run_until_there_is_very_much_of_it(
    monkeypatch: pytest.MonkeyPatch, resets: list[int], graphs: int, forgotten: int
) -> None:
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counters["stats"]["unique_graphs"] = graphs
    monkeypatch.setattr(torch._dynamo.utils, "counters", counters)
    forget_compiled_code()
    forget_compiled_code()
    assert len(resets) == forgotten, "it is counted anew after it was forgotten"


def test_nothing_is_done_where_nothing_was_compiled(
    monkeypatch: pytest.MonkeyPatch, resets: list[int]
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    forget_compiled_code()
    assert not resets
    assert "torch._dynamo.utils" not in sys.modules


def test_what_is_imported_for_all_runs_is_not_looked_through_after_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(run_loop, "import_module", done.append)
    monkeypatch.setattr(run_loop.gc, "freeze", lambda: done.append("freeze"))
    run_loop.import_for_all_runs()
    assert done == ["cafedcl.api", "freeze"]
