import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import cafedcl
from cafedcl.federation.callback import Callback
from cafedcl.federation.rounds import Federation
from cafedcl.terminal.notebook import NotebookProgress, in_notebook, notebook_callbacks


class Shown:
    """What a notebook shows."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def display(self, page: Any, display_id: bool) -> "Shown":
        assert display_id
        self.update(page)
        return self

    def update(self, page: Any) -> None:
        self.pages.append(page)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A notebook's modules, as far as they are used."""
    page = Shown()
    display = SimpleNamespace(HTML=str, display=page.display)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    return page


def test_elsewhere_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert not in_notebook()
    assert notebook_callbacks() == []


def test_a_notebook_sees_the_rounds_go_by(shown: Shown, tiny: Callable[..., Federation]) -> None:
    (callback,) = notebook_callbacks()
    assert isinstance(callback, NotebookProgress)
    federation = tiny("fedavg")
    federation.callbacks.append(callback)
    federation.run()
    assert "round 0 of 2" in shown.pages[0]
    last = shown.pages[-1]
    assert "fedavg: round 2 of 2, 0:00 left" in last
    assert '<progress value="2" max="2"' in last
    assert "balanced" in last
    federation.notice("<b>")
    assert "note: &lt;b&gt;" in shown.pages[-1]


@pytest.mark.parametrize(("callbacks", "seen"), [(None, True), ([], False)])
def test_progress_is_shown_unless_callbacks_are_given(
    shown: Shown, callbacks: list[Callback] | None, seen: bool
) -> None:
    settings = {"model.name": "mlp", "train.epochs": 1, "engine.workers": 1}
    cafedcl.run("fedavg", clients=3, rounds=1, settings=settings, callbacks=callbacks)
    assert bool(shown.pages) == seen
