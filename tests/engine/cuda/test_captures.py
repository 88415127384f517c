import pytest
import torch

from cafedcl.core.contract import Census, Visit
from cafedcl.device.lane import Lane
from cafedcl.engine.cuda.captures import LONG_CHAIN_PAYS, Captures
from cafedcl.engine.views import LossView, embeds_nothing


@pytest.fixture
def plan() -> Captures:
    counts = torch.zeros(3)
    visit = Visit(
        LossView(counts, Census(counts, counts, counts)),
        torch.zeros(()),
        torch.zeros(()),
        {},
        {},
        {},
        {},
        embeds_nothing,
    )
    return Captures(visit)


@pytest.mark.parametrize("times", [1, 3, 4, 15, 16, 21, 39])
def test_work_is_repeated_as_often_as_asked_by_the_longest_chains(
    plan: Captures, times: int
) -> None:
    done, lane = list[str](), Lane(torch.device("cpu"))
    plan.visits["work", 7] = LONG_CHAIN_PAYS
    plan.prepare(lane, "work", 7, times, lambda: done.append("work"), lambda: None)
    assert done == ["work"], "a longer chain needs no warming up"
    assert {key[2] for key in plan.calls} == {number for number in (1, 4, 16) if number <= times}
    replays = {key: (capture, list[int]()) for key, capture in plan.calls.items()}
    for key, (capture, calls) in replays.items():
        plan.calls[key] = lambda capture=capture, calls=calls: (calls.append(1), capture())
    plan.repeat("work", 7, times)
    assert done == ["work"] * (1 + times)
    assert (
        sum(len(calls) for _, calls in replays.values())
        == times // 16 + times % 16 // 4 + times % 4
    )


def test_everything_is_made_ready_before_any_capture(
    plan: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer chain may be asked for later, when the network is in another mode."""
    mode, captured = ["train"], list[str]()
    lane = Lane(torch.device("cpu"))
    plan.visits["score", 7] = LONG_CHAIN_PAYS
    monkeypatch.setattr(lane, "capture", lambda work, before, warm: captured.append(mode[0]))
    for most in (1, 5, 40):
        mode[0] = "train"
        plan.prepare(lane, "score", 7, most, lambda: None, lambda: mode.__setitem__(0, "eval"))
    assert captured == ["eval"] * 3


def test_what_is_captured_is_not_captured_again_and_longer_chains_come_later(
    plan: Captures,
) -> None:
    lane = Lane(torch.device("cpu"))
    plan.prepare(lane, "work", 7, 3, lambda: None, lambda: None)
    first = dict(plan.calls)
    plan.prepare(lane, "work", 7, 5, lambda: None, lambda: None)
    assert plan.calls.keys() == {("work", 7, 1), ("work", 7, 4)}
    assert plan.calls["work", 7, 1] is first["work", 7, 1]
    plan.prepare(lane, "work", 8, 1, lambda: None, lambda: None)
    plan.prepare(lane, "other", 7, 1, lambda: None, lambda: None)
    assert len(plan.calls) == 4
    plan.close()
    assert not plan.calls


def test_the_longest_chain_is_captured_when_it_pays(plan: Captures) -> None:
    done, lane = list[str](), Lane(torch.device("cpu"))
    for visit in range(LONG_CHAIN_PAYS + 1):
        plan.prepare(lane, "work", 7, 40, lambda: done.append("work"), lambda: None)
        assert (("work", 7, 16) in plan.calls) == (visit == LONG_CHAIN_PAYS)
        done.clear()
        plan.repeat("work", 7, 21)
        assert len(done) == 21
