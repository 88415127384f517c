import dataclasses
import math

import pytest
import torch

from cafedcl.methods._readings import CAFedCLOptions
from cafedcl.methods.cafedcl import CAFedCL


def outcome(federation):
    """Run to the end and return everything that a reading may change."""
    federation.run()
    for record in federation.history:
        assert record.status == "ok"
        assert record.failed == []
        assert record.server is not None
        assert all(math.isfinite(value) for value in record.loss.values())
    result = {
        **federation.state,
        **{f"own/{k}": v for k, v in federation.own.items() if k.endswith("score")},
    }
    for name, value in federation.state.items():
        assert value.isfinite().all(), name
    for name, value in federation.history[-1].tables.items():
        if name.startswith("notes/"):
            assert value[federation.history[-1].participants].isfinite().all(), name
    return result


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)) for name in one
    )


SKEWED = {"split__kind": "dirichlet", "split__alpha": 0.1, "train__iterations": 1}
CHOICES = [
    (field.name, value)
    for field in dataclasses.fields(CAFedCLOptions)
    for value in field.metadata["limits"].choices
    if value != field.default
]
NUMBERS = [
    ("tau", 0.5),
    ("lam_align", 1.0),
    ("align_warmup", 1),
    ("lam_geo", 0.0),
    ("margin", 2.0),
    ("beta", 3.0),
    ("w", (1.0, 0.0, 0.0)),
    ("clip", (0.9, 0.95)),
    ("momentum", 0.5),
    ("unvalidated", 0.0),
    ("epsilon", 0.1),
]
NEEDS = {
    ("inference", "head"): {"method__classifier": "ce"},
    ("unseen", "literal"): {"split__kind": "pathological"},
    ("unvalidated", 0.0): {"split__validation": 0.0},
    ("prototype_of", "augmented"): {"augment__name": "mixup", "split__alpha": 0.5},
    ("gamma", 0.1): {"augment__name": "mixup", "split__alpha": 0.5},
    ("missing", "literal"): {"augment__name": "gan", "augment__steps": 3, "split__alpha": 0.5},
}
IDLE = [("half", 3.0), ("ridge", 0.1), ("rare_gain", 0.2)]
"""What changes nothing with the default scale of conf_data, and without a fitted classifier."""


@pytest.fixture(scope="module")
def usual(tiny):
    """What the default readings come to with some settings, each of which is run once."""
    found = {}

    def outcome_with(**needs):
        key = tuple(needs.items())
        if key not in found:
            found[key] = outcome(tiny(**SKEWED | needs))
        return found[key]

    return outcome_with


@pytest.mark.parametrize(("name", "value"), CHOICES + NUMBERS + IDLE + [("gamma", 0.1)])
def test_every_reading_runs_and_changes_something_unless_it_is_idle(tiny, usual, name, value):
    needs = NEEDS.get((name, value), {})
    result = outcome(tiny(**SKEWED | needs | {f"method__{name}": value}))
    assert equal(result, usual(**needs)) == ((name, value) in IDLE)


def test_the_saturating_scale_follows_its_half(tiny):
    runs = [
        outcome(tiny(method__data_scale="saturating", method__half=half)) for half in (3.0, 30.0)
    ]
    assert not equal(*runs)


def test_geometry_by_the_letter_trains_the_weights_of_no_geometry(tiny):
    letter, without = tiny(method__geo="literal"), tiny(method__lam_geo=0.0)
    outcome(letter)
    outcome(without)
    assert letter.history[0].loss.keys() - without.history[0].loss.keys() == {"geo"}
    assert equal(letter.state, without.state)


@pytest.mark.parametrize("preset", sorted(CAFedCL.presets))
def test_every_preset_runs(tiny, preset):
    outcome(tiny(f"cafedcl:{preset}"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"anchors": "fixed", "init": "means"}, "nothing would be trained"),
        ({"inference": "head", "classifier": "ce", "own_classes": "held"}, "predict all classes"),
    ],
)
def test_readings_that_do_not_go_together_are_refused(options, said):
    assert said in CAFedCLOptions(**options).contradiction()
    for name in options:
        rest = {key: value for key, value in options.items() if key != name}
        assert said not in str(CAFedCLOptions(**rest).contradiction())


def test_a_head_does_not_know_the_clients_class_frequencies():
    for inference, known in (("head", False), ("anchors", True)):
        options = CAFedCLOptions(inference=inference, classifier="ce", calibrate=1.0)
        assert CAFedCL(options, 3, 4).knows_prior is known
