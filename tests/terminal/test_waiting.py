"""No command is silent for longer than two seconds."""

import io
import time

import pytest
from rich.console import Console

from cafedcl.core.steps import step
from cafedcl.terminal import waiting
from cafedcl.terminal.progress import StepLine
from cafedcl.terminal.waiting import StepWatch, showing_steps, silent_steps


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def old(monkeypatch):
    """A step that began five seconds ago."""

    def make(what="decoding"):
        made = step(what)
        begun = made.__enter__()
        begun.began -= 5
        return made, begun

    return make


def test_a_step_is_shown_after_two_seconds_once_and_again_later(old):
    out = io.StringIO()
    watch = StepWatch(out)
    with step("short"):
        watch.look()
    assert out.getvalue() == ""
    made, begun = old()
    watch.look()
    watch.look()
    assert out.getvalue() == "decoding, 5 s so far\n"
    begun.began -= 11
    watch.look()
    assert out.getvalue().count("\n") == 2
    made.__exit__(None, None, None)


def test_in_a_terminal_the_line_is_replaced_and_erased(old):
    out = Terminal()
    watch = StepWatch(out)
    made, _ = old("a\x1b[31m b")
    watch.look()
    assert out.getvalue().startswith("\r\x1b[K")
    assert "\x1b[31m" not in out.getvalue()
    made.__exit__(None, None, None)
    watch.look()
    assert out.getvalue().endswith("\r\x1b[K")


def test_whoever_shows_progress_silences_the_line(old, capsys, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK", 0.01)
    made, _ = old()
    with showing_steps():
        with silent_steps():
            time.sleep(0.1)
            assert capsys.readouterr().err == ""
        until = time.monotonic() + 600
        while not (said := capsys.readouterr().err) and time.monotonic() < until:
            time.sleep(0.01)
        assert "decoding" in said
    made.__exit__(None, None, None)


def test_a_closed_stream_is_no_error(old):
    out = io.StringIO()
    watch = StepWatch(out)
    out.close()
    made, _ = old()
    watch.look()
    made.__exit__(None, None, None)


def test_a_live_view_shows_the_step_too(old):
    screen = Console(file=io.StringIO(), width=80, markup=False)
    screen.print(StepLine())
    made, _ = old("loading photos")
    screen.print(StepLine())
    made.__exit__(None, None, None)
    assert "loading photos, 5 s so far" in screen.file.getvalue()
