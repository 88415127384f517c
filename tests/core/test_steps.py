import pytest

from cafedcl.core import steps
from cafedcl.core.steps import Step, current, spoken, step, tracked


def test_the_innermost_step_is_the_current_one():
    assert current() is None
    with step("outer"):
        with step("inner") as inner:
            assert current() is inner
        assert current().what == "outer"
    assert current() is None


def test_a_step_that_fails_has_ended():
    with pytest.raises(ValueError, match="x"), step("failing"):
        raise ValueError("x")
    assert current() is None


def test_tracked_items_are_counted():
    seen = [(item, current().done) for item in tracked("abc", "reading", 3, "letters")]
    assert seen == [("a", 0), ("b", 1), ("c", 2)]
    assert current() is None


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"what": "loading x"}, "loading x, 10 s so far"),
        (
            {"what": "decoding", "total": 5000, "done": 1000, "unit": "images"},
            "decoding, 1,000 of 5,000 images, about 40 s left",
        ),
        ({"what": "compiling", "expected": 40.0}, "compiling, about 30 s left"),
        ({"what": "compiling", "expected": 4.0}, "compiling, about 0 s left"),
        ({"what": "round 1", "total": 3}, "round 1, 0 of 3, 10 s so far"),
    ],
)
def test_a_step_says_what_it_does_and_how_long_it_takes(made, words, monkeypatch):
    monkeypatch.setattr(steps.time, "perf_counter", lambda: 110.0)
    assert str(Step(**made, began=100.0)) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.4, "3 s"), (99, "99 s"), (150, "2 min"), (9000, "2.5 h")]
)
def test_times_as_people_say_them(seconds, words):
    assert spoken(seconds) == words
