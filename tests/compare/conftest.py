"""A stub in place of `cafedcl run`, so that many runs take no time."""

import json
import sys
from pathlib import Path

import pytest
from comparing import Notes

import cafedcl
from cafedcl.compare import pool as schedule_pool
from cafedcl.compare import processes
from cafedcl.federation.checkpoint import Checkpoint

STUB = """
import json, os, shutil, signal, sys, time
from pathlib import Path
from cafedcl.compare.run_loop import take_runs

class Stopped(Exception):
    pass

def stop(*_):
    raise Stopped

def execute(arguments):
    out = Path(arguments[arguments.index("--out") + 1] if "--out" in arguments else arguments[1])

    def note(what):
        with open(os.environ["STUB_NOTES"], "a") as notes:
            words = [what, arguments[0], str(out), time.time(), os.getpid()]
            notes.write(json.dumps(words) + "\\n")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        note("start")  # whoever reads it may send the signal at once
        if os.environ.get("STUB_BROKEN", "nobody") in str(out):
            print("Traceback, of many lines\\nerror: on fire", file=sys.stderr)
            return 2
        if os.environ.get("STUB_DYING", "nobody") in str(out):
            os.kill(os.getpid(), signal.SIGKILL)
        run(out)
    except Stopped:
        print("interrupted; saved", file=sys.stderr)
        return 130
    finally:
        note("end")
        signal.signal(signal.SIGTERM, before)
    return 0

def run(out):
    (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    (out / "config.toml").touch()
    file = out / "metrics.jsonl"
    done = len(file.read_text().splitlines()) if file.exists() else 0
    for number in range(done, 3):
        time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
        while number == 2 and os.path.exists(os.environ.get("STUB_HELD", "")):
            time.sleep(0.01)
        with file.open("a") as lines:
            line = {"round": number, "status": "ok", "participants": [], "dropped": []}
            line |= {"failed": [], "traffic": {"up_bytes": 1, "down_bytes": 1}, "lr": 0.1}
            line |= {"loss": {}, "seconds": {}, "own": None}
            line |= {"server": {"accuracy": 0.5 + number / 10}}
            lines.write(json.dumps(line) + "\\n")
    shutil.copy(os.environ["STUB_CHECKPOINT"], out / "checkpoints" / "000003.safetensors")

take_runs(execute)
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Jobs that only write three lines of metrics, the last when there is no file STUB_HELD; gives
    what they noted: start or end, command, folder, time, process.
    """
    program, notes = tmp_path / "stub.py", tmp_path / "notes.jsonl"
    # Without site-packages it starts at once, so it has to be told where our package is.
    home = str(Path(cafedcl.__file__).parents[1])
    program.write_text(f"import sys\nsys.path.insert(0, {home!r})\n{STUB}")
    monkeypatch.setattr(processes, "PROGRAM", (sys.executable, "-S", str(program)))
    monkeypatch.setattr(schedule_pool, "POLL", 0.01)
    monkeypatch.setenv("STUB_NOTES", str(notes))
    checkpoint = tmp_path / "000003.safetensors"
    Checkpoint(3, {}).write(checkpoint)
    monkeypatch.setenv("STUB_CHECKPOINT", str(checkpoint))
    return lambda: (
        [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    )
