import json
import threading
import time

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.federation.journal import NAME, Journal, follow
from cafedcl.federation.run_folder import RunFolder


def events(path, alive=lambda: True):
    return [{k: v for k, v in event.items() if k != "time"} for event in follow(path, alive, 0.01)]


def test_what_happens_in_a_run_is_written_down(tiny, tmp_path):
    journal = Journal(tmp_path / "run")
    federation = tiny("fedavg", federation__drop=["1:0,1,2,3,4"])
    federation.callbacks = [journal]
    federation.run()
    journal.end(None)
    seen = events(journal.path)
    assert [event["event"] for event in seen] == [
        "round",
        "client",
        "client",
        "client",
        "done",
        "round",
        "done",
        "end",
    ]
    assert seen[0] == {"event": "round", "round": 0, "clients": 3}
    assert [event["client"] for event in seen[1:4]] == federation.history[0].participants
    assert seen[1]["failure"] is None
    assert seen[-1] == {"event": "end", "error": None}


def test_events_are_followed_while_they_are_written(tmp_path):
    journal = Journal(tmp_path)

    def write():
        for number in range(5):
            time.sleep(0.02)
            journal.say(str(number))
        journal.end("it broke")

    thread = threading.Thread(target=write)
    thread.start()
    seen = events(tmp_path)
    thread.join()
    assert [event["message"] for event in seen[:-1]] == list("01234")
    assert seen[-1]["error"] == "it broke"


def test_half_a_line_waits_for_its_other_half(tmp_path):
    line = json.dumps({"event": "end", "error": None})
    (tmp_path / NAME).write_text(line[:9])

    def alive():
        (tmp_path / NAME).write_text(line + "\n")
        return True

    assert events(tmp_path, alive) == [{"event": "end", "error": None}]


def test_a_journal_that_nobody_writes_any_more_ends(tmp_path):
    Journal(tmp_path).say("hello")
    assert events(tmp_path, lambda: False) == [{"event": "notice", "message": "hello"}]
    assert events(tmp_path / "nowhere", lambda: False) == []


def test_a_new_journal_starts_empty(tmp_path):
    Journal(tmp_path).say("old")
    Journal(tmp_path).end(None)
    assert [event["event"] for event in events(tmp_path)] == ["end"]


def test_the_events_of_another_run_are_kept(tmp_path):
    first = Journal(tmp_path)
    folder = RunFolder(tmp_path)
    with folder.held():
        first.say("working")
        for resumed in (False, True):
            with pytest.raises(CafedclError, match="in use by another run"):
                Journal(tmp_path, resumed)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(CafedclError, match="already holds a run"):
        Journal(tmp_path)
    lines = (tmp_path / NAME).read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["working"]
    Journal(tmp_path, resumed=True)
    assert not (tmp_path / NAME).exists()
