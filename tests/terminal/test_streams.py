"""What a command does goes on whatever becomes of its standard output and standard error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import sys
from pathlib import Path
from cafedcl.terminal.streams import lasting_streams

with lasting_streams():
    for number in range(3):
        print("8×8 ±", number, flush=True)
        print("so far ±", number, file=sys.stderr)
        Path("done").write_text(str(number))
    sys.exit(0)
"""
LOST = "error: standard output cannot be written: No space left on device; it is given up"
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def work(
    folder: Path, redirected: str, code: str = WORK, encoding: str = "utf-8", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run some code whose streams a shell has redirected."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$0" -c "$1" {redirected}', sys.executable, code],
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": encoding, **variables},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@full
def test_a_full_disk_is_told_once_and_nothing_else_is_lost(tmp_path: Path) -> None:
    done = work(tmp_path, "> /dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith(LOST)
    assert [line[:6] for line in done.stderr.splitlines()[1:]] == ["so far"] * 3
    assert (tmp_path / "done").read_text() == "2"


@full
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_without_a_buffer_is_missed_at_once(unbuffered: str, tmp_path: Path) -> None:
    code = WORK.replace(", flush=True", "")
    done = work(tmp_path, "> /dev/full", code, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    said = [line.startswith(LOST) for line in done.stderr.splitlines()]
    assert said.index(True) == (0 if unbuffered else 3)
    assert sum(said) == 1


@full
@pytest.mark.parametrize("redirected", ["2> /dev/full", "2>&-", "<&- 2>&-"])
def test_a_command_does_without_standard_error(redirected: str, tmp_path: Path) -> None:
    done = work(tmp_path, redirected)
    assert (done.returncode, done.stdout) == (0, "8×8 ± 0\n8×8 ± 1\n8×8 ± 2\n")
    assert (tmp_path / "done").read_text() == "2"


def test_a_command_does_without_any_stream(tmp_path: Path) -> None:
    """A file that is opened then must not take the place of one: it would get what is printed."""
    done = work(tmp_path, "<&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "done").read_text() == "2"


@pytest.mark.parametrize("code", [WORK, WORK.replace(", flush=True", "")])
def test_a_reader_who_goes_away_ends_a_command_without_a_word(code: str, tmp_path: Path) -> None:
    done = work(tmp_path, "2> /dev/null | true", code)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"8?8 ? 0\n"), ("latin-1", b"8\xd78 \xb1 0\n")]
)
def test_what_cannot_be_encoded_is_replaced(encoding: str, shown: bytes, tmp_path: Path) -> None:
    done = work(tmp_path, "> out 2> err", encoding=encoding)
    assert done.returncode == 0
    assert (tmp_path / "out").read_bytes().startswith(shown)
    assert (tmp_path / "err").read_bytes().startswith(b"so far " + shown.split()[1])


@full
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["methods"]])
def test_a_short_command_whose_output_is_lost_fails_in_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "cafedcl", *words],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    # On a slow machine other lines say what takes so long.
    assert done.stderr.splitlines()[-1].startswith(LOST)


LIVE = """
import os, pty, sys
import rich.console, rich.live
from cafedcl.terminal.streams import lasting_streams

ours, terminal = pty.openpty()
os.dup2(terminal, 1)
os.close(terminal)
with lasting_streams():
    console = rich.console.Console(force_terminal=True)
    with rich.live.Live("view", console=console, auto_refresh=False) as live:
        os.close(ours)
        live.update("another view", refresh=True)
    print("done", file=sys.stderr)
    sys.exit(130)
"""


def test_a_live_view_ends_well_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """A live view leads standard error to its own terminal."""
    done = work(tmp_path, "", LIVE)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[0].startswith("error: standard output cannot be written: Inp")
    assert done.stderr.splitlines()[1:] == ["done"]


TWICE = """
import os, sys
from cafedcl.terminal.streams import lasting_streams

try:
    with lasting_streams():
        print("first", end=" ", file=sys.stderr)
        sys.exit(0)
finally:
    os.write(2, b"then")
"""


def test_what_a_command_told_is_not_kept_back_when_it_ends(tmp_path: Path) -> None:
    """A process of a comparison goes on with its next run, and its next log."""
    assert work(tmp_path, "", TWICE).stderr == "first then"
