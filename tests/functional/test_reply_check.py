import math
from dataclasses import replace

import pytest
import torch
from capturing import sent, with_sent

from cafedcl.core.contract import Field, Reply, Up
from cafedcl.core.flat import FlatModel, WeightSlice
from cafedcl.functional.reply_check import ReplyValidator, largest

COUNTS = torch.tensor([[3, 0, 2], [0, 4, 0]])
WEIGHTS = {"head.weight": torch.zeros(3, 2), "steps": torch.tensor(0)}
MODEL = {"head.weight": torch.ones(3, 2), "steps": torch.tensor(7)}
FIELDS = {
    "prototypes": Field((2,), -1.0, 1.0),
    "confidence": Field((), 0.0, 1.0),
    "spare": Field((4,), per_class=False),
}


def good():
    tensors = {
        "classes": torch.tensor([0, 2]),
        "prototypes": torch.full((2, 2), 0.5),
        "confidence": torch.tensor([0.2, 1.0]),
        "spare": torch.full((4,), 1e6),
    }
    return Reply(
        Up(0, 5, tensors, model=MODEL),
        {"model/personal": torch.ones(2), "seen": torch.tensor([True])},
        {},
    )


def problem(reply):
    return ReplyValidator(WEIGHTS, FIELDS, COUNTS).problem(reply)


def changed(**tensors):
    reply = good()
    entries = {
        **sent(reply.up),
        **{name.replace("__", "/"): value for name, value in tensors.items()},
    }
    return replace(
        reply, up=with_sent(reply.up, {n: v for n, v in entries.items() if v is not None})
    )


def test_a_good_reply_passes():
    assert problem(good()) is None


def test_a_client_that_lists_no_class_passes():
    reply = changed(
        classes=torch.tensor([], dtype=torch.int64),
        prototypes=torch.zeros(0, 2),
        confidence=torch.zeros(0),
    )
    assert problem(reply) is None


def test_a_method_that_sends_nothing_but_weights_needs_no_classes():
    reply = Reply(Up(1, 4, {}, model=MODEL), {}, {})
    assert ReplyValidator(WEIGHTS, {}, COUNTS).problem(reply) is None
    assert "classes" in ReplyValidator(WEIGHTS, FIELDS, COUNTS).problem(reply)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["model/head.weight", "prototypes", "confidence", "spare"])
def test_one_number_that_is_not_finite_is_named(name, bad):
    value = sent(good().up)[name].clone()
    value.view(-1)[-1] = bad
    reply = changed(**{name: value})
    reason = problem(reply)
    assert reason == f"reply has NaN or Inf in '{name}'"
    up = replace(reply.up, losses={"ce": math.nan, "pull": 1.0, "[/]": math.inf})
    assert problem(replace(reply, up=up)) == f"{reason}; in its loss, 'ce' was nan"


def test_nan_in_what_the_client_keeps_is_named():
    reply = replace(good(), memory={"model/personal": torch.tensor([1.0, torch.nan])})
    assert problem(reply) == "memory has NaN or Inf in 'model/personal'"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"model__head.weight": torch.ones(2, 3)}, ["model/head.weight", "shape (2, 3)", "(3, 2)"]),
        ({"model__steps": torch.tensor([7])}, ["model/steps", "shape (1,)", "()"]),
        ({"prototypes": torch.zeros(3, 2)}, ["prototypes", "shape (3, 2)", "(2, 2)"]),
        ({"prototypes": torch.zeros(2, 5)}, ["prototypes", "shape (2, 5)"]),
        ({"confidence": torch.tensor([0.5])}, ["confidence", "shape (1,)"]),
        ({"spare": torch.zeros(2, 4)}, ["spare", "shape (2, 4)", "(4,)"]),
        (
            {"model__head.weight": torch.ones(3, 2).double()},
            ["model/head.weight", "float64", "float32"],
        ),
        ({"model__steps": torch.tensor(7.0)}, ["model/steps", "float32", "int64"]),
        ({"confidence": torch.tensor([0.5, 0.5]).half()}, ["confidence", "float16"]),
        ({"model__head.weight": None}, ["model/head.weight", "missing"]),
        ({"prototypes": None}, ["prototypes", "missing"]),
        ({"classes": None}, ["classes", "missing"]),
        ({"model__extra": torch.ones(1)}, ["model/extra", "not asked for"]),
        ({"surprise": torch.ones(1)}, ["surprise", "not asked for"]),
        ({"confidence": torch.tensor([-0.1, 0.5])}, ["confidence", "-0.1", "outside [0, 1]"]),
        ({"confidence": torch.tensor([0.5, 1e9])}, ["confidence", "1e+09", "outside [0, 1]"]),
        ({"prototypes": torch.full((2, 2), -3.0)}, ["prototypes", "-3", "outside [-1, 1]"]),
        ({"classes": torch.tensor([2, 0])}, ["classes", "order"]),
        ({"classes": torch.tensor([0, 0])}, ["classes", "lists a class twice"]),
        ({"classes": torch.tensor([0, 3])}, ["classes", "class numbers"]),
        ({"classes": torch.tensor([-1, 0])}, ["classes", "class numbers"]),
        ({"classes": torch.tensor([0.0, 2.0])}, ["classes", "list of class numbers"]),
        ({"classes": torch.tensor([[0, 2]])}, ["classes", "list of class numbers"]),
        ({"classes": torch.tensor([True, False])}, ["classes", "list of class numbers"]),
    ],
)
def test_a_bad_entry_is_rejected_by_name(tensors, words):
    reason = problem(changed(**tensors))
    assert reason is not None
    assert all(word in reason for word in words), reason
    assert "\n" not in reason


@pytest.mark.parametrize("samples", [0, 4, 6, -5, 10**9])
def test_a_wrong_number_of_samples_is_rejected(samples):
    reply = good()
    reason = problem(replace(reply, up=replace(reply.up, samples=samples)))
    assert reason == f"reports {samples} samples, but enrolled with 5"


@pytest.mark.parametrize("client", [-1, 2, 99])
def test_a_client_that_never_enrolled_is_rejected(client):
    reply = good()
    assert (
        problem(replace(reply, up=replace(reply.up, client=client))) == f"unknown client {client}"
    )


@pytest.mark.parametrize(
    ("correct", "words"),
    [
        ({"tested": None}, "lacks 'tested'"),
        ({"held": None}, "lacks 'held'"),
        ({"prior": None}, "lacks 'prior'"),
        ({"tested": [2, 0]}, "'tested' is not a count per class"),
        ({"all": [1.0, 0.0, 0.0]}, "'all' is not a count per class"),
        ({"held": [1, 1, 0]}, "'held' counts more images than were tested"),
        ({"prior": [1, 1, 0]}, "'prior' counts more images than were tested"),
        ({"all": [-1, 0, 0]}, "'all' counts more images than were tested"),
        ({"tested": [2**60, 2, 1]}, "'tested' counts more than 1,000,000,000 images"),
    ],
)
def test_a_test_result_that_cannot_be_is_named(correct, words):
    counts = {name: [2, 0, 1] for name in ("tested", "all", "held", "prior")}
    sound = {name: torch.tensor(value) for name, value in counts.items()}
    assert problem(replace(good(), correct=sound)) is None
    changed = {name: value for name, value in {**counts, **correct}.items() if value is not None}
    assert words in problem(
        replace(good(), correct={name: torch.tensor(value) for name, value in changed.items()})
    )


def test_a_test_result_counts_no_more_images_than_the_client_enrolled_with():
    sound = {name: torch.tensor([2, 0, 1]) for name in ("tested", "all", "held", "prior")}
    reply = replace(good(), correct=sound)
    enrolled = torch.tensor([[2, 0, 1], [9, 9, 9]])
    assert ReplyValidator(WEIGHTS, FIELDS, COUNTS, tested=enrolled).problem(reply) is None
    fewer = enrolled - torch.tensor([0, 0, 1])
    reason = ReplyValidator(WEIGHTS, FIELDS, COUNTS, tested=fewer).problem(reply)
    assert reason == "its test result counts more images than it enrolled with"


def test_a_note_of_another_shape_is_named():
    reply = good()
    assert problem(replace(reply, up=replace(reply.up, notes={"scatter": torch.zeros(3)}))) is None
    assert "'scatter'" in problem(
        replace(reply, up=replace(reply.up, notes={"scatter": torch.zeros(2, 3)}))
    )
    assert (
        problem(replace(reply, up=replace(reply.up, notes={"generated_round": torch.tensor(1.0)})))
        is None
    )
    assert "'generated_round'" in problem(
        replace(reply, up=replace(reply.up, notes={"generated_round": torch.zeros(3)}))
    )


@pytest.mark.parametrize("valid_numbers", [False, True])
def test_numbers_the_engine_has_seen_to_be_finite_are_not_looked_through_again(valid_numbers):
    reply = replace(changed(spare=torch.full((4,), torch.nan)), valid_numbers=valid_numbers)
    assert (problem(reply) is None) == valid_numbers


@pytest.mark.parametrize(("value", "fits"), [(0.0, True), (-0.1, False), (1e30, True)])
def test_a_range_may_have_one_end_only(value, fits):
    fields = {"trust": Field((), 0.0, float("inf"), per_class=False)}
    reply = Reply(Up(1, 4, {"trust": torch.tensor(value)}, model=MODEL), {}, {})
    assert (ReplyValidator(WEIGHTS, fields, COUNTS).problem(reply) is None) == fits


@pytest.mark.parametrize("values", [[torch.ones(2)], [torch.ones(2), torch.zeros(3)]])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_largest_number_is_not_finite_if_any_is_not(values, bad):
    assert float(largest(values)) == 1
    assert not largest([*values[:-1], torch.tensor([0.0, bad, 1.0])]).isfinite()


LAID = {"head.weight": (3, 2), "head.bias": (3,)}


def laid(shapes=LAID, dtype=torch.float32):
    """A client's weights in one vector of ones."""
    slices, begin = {}, 0
    for name, shape in shapes.items():
        slices[name] = WeightSlice.at(begin, torch.Size(shape), last=False)
        begin += math.prod(shape)
    return FlatModel(torch.ones(begin, dtype=dtype), slices)


def test_what_the_method_finds_contradictory_is_rejected_unless_an_engine_here_made_it():
    seen = []

    def contradiction(up):
        seen.append(up.client)
        return "it has too many images"

    validator = ReplyValidator(WEIGHTS, FIELDS, COUNTS, contradiction=contradiction)
    assert validator.problem(good()) == "it has too many images"
    assert "prototypes" in validator.problem(changed(prototypes=torch.full((2, 2), 9.0)))
    assert seen == [0], "what does not even have its ranges is not looked at"
    assert validator.problem(replace(good(), valid_numbers=True)) is None


@pytest.fixture
def evaluator():
    """What an inspector that has passed as many laid models as it is told says of one more."""
    validator = ReplyValidator(
        {name: torch.zeros(shape) for name, shape in LAID.items()}, {}, COUNTS
    )

    def say(model, after=0):
        for _ in range(after):
            assert say(laid()) is None
        return validator.problem(Reply(Up(1, 4, {}, model=model), {}, {}))

    return say


def test_good_laid_models_pass_however_they_lie(evaluator):
    turned = {name: LAID[name] for name in reversed(LAID)}
    for _ in range(2):
        assert evaluator(laid()) is None
        assert evaluator(laid(turned)) is None
        assert evaluator(dict(laid())) is None


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            laid({**LAID, "head.weight": (2, 3)}),
            "'model/head.weight' has shape (2, 3), expected (3, 2)",
        ),
        (laid({**LAID, "head.bias": (3, 1)}), "'model/head.bias' has shape (3, 1), expected (3,)"),
        (laid(dtype=torch.float64), "'model/head.weight' is torch.float64, expected torch.float32"),
        (
            laid(dtype=torch.bfloat16),
            "'model/head.weight' is torch.bfloat16, expected torch.float32",
        ),
        (laid({"head.weight": (3, 2)}), "'model/head.bias' is missing"),
        (laid({"head.weight": (3, 2), "head.scale": (3,)}), "'model/head.bias' is missing"),
        (laid({**LAID, "extra": (1,)}), "'model/extra' was not asked for"),
        (laid({}), "'model/head.weight' is missing"),
    ],
)
def test_a_bad_laid_model_is_rejected_also_after_good_ones(evaluator, model, reason, after):
    assert evaluator(model, after) == reason
    assert evaluator(model, after) == reason, "a bad model is not remembered as a good one"
    assert evaluator(laid()) is None


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("at", "name"), [(0, "head.weight"), (5, "head.weight"), (6, "head.bias"), (8, "head.bias")]
)
def test_a_number_in_a_laid_model_that_is_not_finite_is_named_by_its_weight(
    evaluator, at, name, bad, after
):
    model = laid()
    model.vector[at] = bad
    assert evaluator(model, after) == f"reply has NaN or Inf in 'model/{name}'"
