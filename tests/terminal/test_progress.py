import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from cafedcl.federation.callback import Record
from cafedcl.federation.rounds import Federation
from cafedcl.terminal.progress import (
    JsonProgress,
    LiveProgress,
    Pace,
    PlainProgress,
    Warnings,
)


def round_that_took(**seconds: float) -> Record:
    return Record(0, "ok", [], [], [], {}, 0.1, {}, seconds=seconds)


def test_the_time_left_leaves_out_what_came_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([1000.0, 1006.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    pace = Pace()
    assert pace.left(10) == "–"
    pace.round_done(round_that_took(train=1.5, evaluate=0.5))
    assert pace.left(10) == "0:20"
    pace.round_done(round_that_took(train=1.5))
    assert pace.left(10) == "0:40", "two rounds took 2 + 6 s"


def test_the_live_view_shows_rounds_time_left_scores_and_failures(
    tiny: Callable[..., Federation],
) -> None:
    federation = tiny("fedavg", federation__rounds=3, federation__participation=1.0)
    broken = federation.validator.problem
    object.__setattr__(
        federation.validator,
        "problem",
        lambda reply: "on fire" if reply.up.client == 1 else broken(reply),
    )
    out = io.StringIO()
    with LiveProgress(Console(file=out, force_terminal=True, width=100)) as live:
        federation.callbacks = [live]
        federation.run()
    last = out.getvalue()
    assert "3/3" in last
    assert "0:00 left" in last
    assert "accuracy" in last
    assert "round 2: client 1: on fire" in last


def test_a_resumed_live_view_begins_with_what_was_there(tiny: Callable[..., Federation]) -> None:
    federation = tiny("fedavg", federation__rounds=3)
    federation.step()
    out = io.StringIO()
    with LiveProgress(Console(file=out, force_terminal=True, width=100)) as live:
        federation.callbacks = [live]
        federation.step()
        assert [line["round"] for line in live.lines] == [0, 1]


def test_plain_lines_name_who_failed_and_who_dropped_out(tiny: Callable[..., Federation]) -> None:
    federation = tiny(
        "fedavg", federation__rounds=2, federation__participation=1.0, federation__drop=["0:4"]
    )
    good = federation.validator.problem
    object.__setattr__(
        federation.validator,
        "problem",
        lambda reply: "on fire" if reply.up.client == 1 else good(reply),
    )
    out = io.StringIO()
    federation.callbacks = [PlainProgress(out)]
    federation.run()
    about, cost, first, second = out.getvalue().splitlines()
    assert about.startswith("fedavg on digits: mlp, ")
    assert cost.startswith("mlp: ")
    assert first.startswith("round 1/2  accuracy ")
    assert "dropped 1" in first
    assert "client 1 failed: on fire" in first
    assert second.endswith("0:00 left")


def test_a_plain_line_names_three_failures_and_counts_the_others(
    tiny: Callable[..., Federation],
) -> None:
    federation = tiny("fedavg", federation__rounds=1, federation__participation=1.0)
    object.__setattr__(federation.validator, "problem", lambda reply: "on fire")
    out = io.StringIO()
    federation.callbacks = [PlainProgress(out)]
    federation.run()
    line = out.getvalue().splitlines()[-1]
    assert line.count("on fire") == 3
    assert "client 2 failed: on fire  2 more failed" in line


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_json_lines_are_the_metrics(tiny: Callable[..., Federation], method: str) -> None:
    federation = tiny(method)
    out = io.StringIO()
    federation.callbacks = [JsonProgress(out)]
    federation.run()
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        r.line() for r in federation.history
    ]


def test_a_quiet_run_tells_of_the_first_lost_reply(
    tiny: Callable[..., Federation], capsys: pytest.CaptureFixture[str]
) -> None:
    federation = tiny("fedavg", federation__rounds=2)
    lost = [{"client": 1, "reason": "boom"}]
    told = Warnings()
    for number in range(2):
        record = replace(federation.step(), failed=lost)
        told.round_done(federation, record)
        assert record.round == number
    said = capsys.readouterr().err
    assert said.count("warning:") == 1
    assert "round 1: 1 of" in said
    assert "client 1: boom" in said
