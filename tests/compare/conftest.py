"""A stub in place of `cafedcl run`, so that many runs take no time."""

import json
import sys
from pathlib import Path

import pytest
from comparing import Notes

from cafedcl.compare import jobs as schedule_jobs
from cafedcl.compare import pool as schedule_pool
from cafedcl.federation.checkpoint import Checkpoint

STUB = """
import json, os, shutil, signal, sys, time
from pathlib import Path

def word(flag, default=None):
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default

def stop(*_):
    print("interrupted; saved", file=sys.stderr)
    note("end")
    sys.exit(130)

def note(what):
    with open(os.environ["STUB_NOTES"], "a") as notes:
        notes.write(json.dumps([what, sys.argv[1], str(out), time.time()]) + "\\n")

signal.signal(signal.SIGTERM, stop)
out = Path(word("--out") or sys.argv[2])
note("start")
if os.environ.get("STUB_BROKEN", "nobody") in str(out):
    print("Traceback, of many lines\\nerror: on fire", file=sys.stderr)
    note("end")
    sys.exit(2)
(out / "checkpoints").mkdir(parents=True, exist_ok=True)
(out / "config.toml").touch()
file = out / "metrics.jsonl"
done = len(file.read_text().splitlines()) if file.exists() else 0
for number in range(done, 3):
    time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
    with file.open("a") as lines:
        line = {"round": number, "status": "ok", "participants": [], "dropped": [], "failed": []}
        line |= {"traffic": {"up_bytes": 1, "down_bytes": 1}, "lr": 0.1, "loss": {}, "seconds": {}}
        line |= {"server": {"accuracy": 0.5 + number / 10}, "own": None}
        lines.write(json.dumps(line) + "\\n")
shutil.copy(os.environ["STUB_CHECKPOINT"], out / "checkpoints" / "000003.safetensors")
note("end")
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Jobs that only write three lines of metrics; gives what they noted: start or end, command,
    folder, time.
    """
    program, notes = tmp_path / "stub.py", tmp_path / "notes.jsonl"
    program.write_text(STUB)
    monkeypatch.setattr(schedule_jobs, "PROGRAM", (sys.executable, "-S", str(program)))
    monkeypatch.setattr(schedule_pool, "POLL", 0.01)
    monkeypatch.setenv("STUB_NOTES", str(notes))
    checkpoint = tmp_path / "000003.safetensors"
    Checkpoint(3, {}).write(checkpoint)
    monkeypatch.setenv("STUB_CHECKPOINT", str(checkpoint))
    return lambda: (
        [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    )
