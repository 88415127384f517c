import os
import stat
from pathlib import Path

import pytest

from cafedcl.compare import devices, mps
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


def gpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch, memory: str, there: int, least: int
) -> None:
    """Put an nvidia-smi on the path that tells the GPUs' memory; set the number of cores."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{memory}'\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    monkeypatch.setattr(mps, "cores", lambda: least)


@pytest.mark.parametrize(
    ("memory", "cores", "runs"),
    [
        ("143771\\n", 16, 5),
        ("143771\\n", 6, 3),
        ("143771\\n40960\\n", 16, 2),
        ("8192\\n", 16, 1),
        ("143771\\n", 1, 1),
        ("[N/A]\\n", 16, 1),
    ],
)
def test_the_number_of_runs_on_a_gpu_follows_from_memory_and_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, cores: int, runs: int
) -> None:
    install(tmp_path, monkeypatch)
    gpus(tmp_path, monkeypatch, memory, 1, cores)
    launcher = choose_launcher(["cuda"], None, 1, None)
    assert len(launcher.slots) == runs
    assert all((PIPES in slot.variables) == (runs > 1) for slot in launcher.slots)
    launcher.close()


def test_a_gpu_without_the_service_takes_one_run_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, servers="")
    gpus(tmp_path, monkeypatch, "143771\\n143771\\n", 2, 16)
    assert len(choose_launcher((), None, 1, None).slots) == 2
    assert len(choose_launcher((), 4, 1, None).slots) == 8


def test_nobody_asks_for_the_gpus_memory_where_there_is_no_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setattr(mps, "CONTROL", "there-is-no-such-program")
    monkeypatch.setattr(mps.subprocess, "run", lambda *_, **__: pytest.fail("it was asked"))
    assert mps.runs_per_gpu() == 1
