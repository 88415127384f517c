"""Ctrl-C at every moment of a run: what is said then is true, and following it works."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cafedcl.cli import main as cli
from cafedcl.cli import session
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.terminal.progress import PlainProgress
from cafedcl.terminal.streams import NoReaderError

RUN = [
    *("run", "--method", "fedavg", "--clients", "3", "--rounds", "3", "--device", "cpu"),
    *("--set", "model.name=mlp", "--set", "model.width=0.1", "--set", "train.epochs=1"),
    *("--set", "engine.workers=1", "--out", "run"),
]

Call = Callable[..., tuple[int, str]]


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def interrupt_after(rounds: int) -> Callable[..., None]:
    def round_done(self: PlainProgress, federation: Federation, record: Any) -> None:
        if federation.round >= rounds:
            raise KeyboardInterrupt

    return round_done


MOMENTS: dict[str, tuple[str, Callable[..., None]]] = {
    "before the folder": ("cafedcl.federation.runs.Federation", interrupt),
    "before the config": ("cafedcl.federation.recorder.Recorder.begin", interrupt),
    "before the first round": ("cafedcl.federation.rounds.Federation.run", interrupt),
    "after round 1": ("cafedcl.terminal.progress.PlainProgress.round_done", interrupt_after(1)),
    "after round 2": ("cafedcl.terminal.progress.PlainProgress.round_done", interrupt_after(2)),
}
NOTHING = "interrupted; the run had not begun, nothing is saved"
RESUME = "saved. Resume with: cafedcl resume run"
SAID = {
    "before the folder": NOTHING,
    "before the config": NOTHING,
    "before the first round": f"interrupted; 0 rounds are {RESUME}",
    "after round 1": f"interrupted; 1 round is {RESUME}",
    "after round 2": f"interrupted; 2 rounds are {RESUME}",
}


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Call:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["cafedcl", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0), capsys.readouterr().err.strip()

    return run


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_said_is_true_and_works(
    moment: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS[moment])
        assert call(*RUN) == (130, SAID[moment])
    again = ["resume", "run"] if "resume" in SAID[moment] else RUN
    assert call(*again) == (0, "")
    assert len(RunFolder("run").metrics()) == 3


def test_a_run_whose_output_nobody_reads_any_more_is_interrupted(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object) -> None:
        raise NoReaderError

    with monkeypatch.context() as patch:
        patch.setattr(PlainProgress, "round_done", leave)
        assert call(*RUN) == (130, SAID["after round 1"])
    assert call("resume", "run") == (0, "")


@pytest.mark.parametrize("moment", ["before the first round", "after round 2"])
def test_a_resumed_run_that_is_interrupted_again_is_still_saved(
    moment: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS["after round 1"])
        call(*RUN)
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS[moment])
        rounds = "1 round is" if moment == "before the first round" else "2 rounds are"
        assert call("resume", "run") == (130, f"interrupted; {rounds} {RESUME}")


def test_a_run_that_stood_there_before_is_not_taken_for_the_interrupted_one(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*RUN) == (0, "")
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS["before the folder"])
        code, said = call(*RUN)
    assert code in (2, 130)
    assert "resume" not in said or "already holds a run" in said


def test_an_interrupt_while_pytorch_loads_waits_for_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an import it may be swallowed, or leave a package half imported."""
    loaded = []

    @contextmanager
    def loading(_: str) -> Iterator[None]:
        os.kill(os.getpid(), signal.SIGINT)
        yield
        loaded.append(True)

    monkeypatch.setattr(session, "step", loading)
    assert call(*RUN) == (130, "interrupted; nothing had begun")
    assert loaded
    assert not Path("run").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
