import json
import runpy
from pathlib import Path

import pytest

from cafedcl.core.errors import CafedclError, in_words


def test_an_error_in_own_code_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def loss(read, text):\n    x = 1\n    return read(text)\n", encoding="utf-8")
    loss = runpy.run_path(str(file))["loss"]
    with pytest.raises(ValueError, match="Expecting value") as caught:
        loss(json.loads, "?")
    assert in_words(caught.value).endswith(" (mine.py, line 3)")


def test_an_error_that_no_own_code_is_part_of_has_no_place() -> None:
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("?")
    trace = caught.value.__traceback__
    assert trace is not None
    inside = caught.value.with_traceback(trace.tb_next)
    assert in_words(inside) == f"JSONDecodeError: {caught.value}"


def test_an_error_for_people_has_no_kind() -> None:
    assert in_words(CafedclError("what to do")) == "what to do"
