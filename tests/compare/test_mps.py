import os
import stat
from pathlib import Path

import pytest

from cafedcl.compare import devices
from cafedcl.compare.devices import choose_launcher
from cafedcl.compare.mps import CONTROL, PIPES, MultiProcessService

PROGRAM = """#!/bin/sh
test -z "$CUDA_VISIBLE_DEVICES" || echo visible >> {notes}
echo "$@" >> {notes}
while read line; do
  echo "$line" >> {notes}
  test "$line" != get_server_list || echo "{servers}"
done
exit {status}
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, servers: str = "4711", status: int = 0
) -> Path:
    """Put a control program on the path that notes what it is told; return its notes."""
    notes = folder / "notes.txt"
    program = folder / CONTROL
    program.write_text(PROGRAM.format(notes=notes, servers=servers, status=status))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv(PIPES, raising=False)
    return notes


def test_the_service_runs_from_start_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = install(tmp_path, monkeypatch)
    service = MultiProcessService()
    assert service.variables == {}
    service.start()
    folder = Path(service.variables[PIPES])
    assert folder.is_dir()
    service.stop()
    assert not folder.exists()
    assert service.variables == {}
    told = [line for line in notes.read_text().splitlines() if line]
    assert told == ["-d", f"start_server -uid {os.getuid()}", "get_server_list", "quit"]


@pytest.mark.parametrize(("servers", "status"), [("", 0), ("4711", 1)])
def test_a_service_that_does_not_start_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: str, status: int
) -> None:
    notes = install(tmp_path, monkeypatch, servers, status)
    service = MultiProcessService()
    service.start()
    assert service.variables == {}
    assert notes.read_text().splitlines()[-1] == "quit"


def test_the_users_own_service_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = install(tmp_path, monkeypatch)
    monkeypatch.setenv(PIPES, str(tmp_path))
    service = MultiProcessService()
    service.start()
    assert service.variables == {}
    service.stop()
    assert not notes.exists()


def test_runs_that_share_a_gpu_share_it_by_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = install(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(devices, "cores", lambda: 8)
    alone = choose_launcher(["cuda"], 1, 1, None)
    assert not any(PIPES in slot.variables for slot in alone.slots)
    alone.close()
    assert not notes.exists()
    together = choose_launcher(["cuda"], 3, 1, None)
    pipes = {slot.variables[PIPES] for slot in together.slots}
    assert len(together.slots) == 3
    assert len(pipes) == 1
    together.close()
    assert not Path(pipes.pop()).exists()
