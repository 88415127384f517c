"""The server's optimizer, against a few lines of numpy on what went down and came up."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cafedcl.core.contract import Reply
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, under, unpack
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.server_optimizer import ServerOptimizer
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve
from cafedcl.testing import check_method
from cafedcl.testing.case import Case, first_difference, result_of

WEIGHT = "encoder.second.weight"
OPTIMIZERS = {
    "momentum": {"optimizer": "momentum", "lr": 0.5, "momentum": 0.8},
    "adam": {"optimizer": "adam", "momentum": 0.7, "beta2": 0.9, "tau": 0.01},
    "acg": {"optimizer": "acg", "momentum": 0.85},
    "average": {"average": 0.6},
    "all": {"optimizer": "acg", "momentum": 0.5, "average": 1.0},
}


class Listening(ReferenceEngine):
    """Keeps the weight that went down, and the mean of those that came up, of every round."""

    def __init__(self, task):
        super().__init__(task)
        self.rounds = []

    def train(self, jobs):
        jobs = list(jobs)
        results = [self.attempt(job) for job in jobs]
        assert all(isinstance(result, Reply) for result in results)
        samples = np.array([result.up.samples for result in results], dtype=float)
        weights = np.stack([result.up.model[WEIGHT].double().numpy() for result in results])
        mean = (samples[:, None, None] * weights).sum(0) / samples.sum()
        self.rounds.append((jobs[0].down.tensors[f"model/{WEIGHT}"].double().numpy(), mean))
        yield from results


def settings(name, **others):
    options = {f"server__{key}": value for key, value in OPTIMIZERS[name].items()}
    return {"federation__rounds": 4, **options, **others}


def run(tiny, method="fedavg", **options):
    """Return a finished federation, what it sent and averaged, and the scored weight per round."""
    federation = tiny(method, **options)
    federation.engine = Listening(federation.task)
    start = federation.state[f"model/{WEIGHT}"].double().numpy()
    scored = []
    while not federation.finished:
        federation.step()
        scored.append(federation.state[f"model/{WEIGHT}"].double().numpy())
    return start, federation.engine.rounds, scored


def test_momentum_is_fedavgm(tiny):
    theta, rounds, scored = run(tiny, **settings("momentum"))
    velocity = 0.0
    for (down, mean), after in zip(rounds, scored, strict=True):
        np.testing.assert_allclose(down, theta, atol=1e-6)
        velocity = 0.8 * velocity + (theta - mean)
        theta = theta - 0.5 * velocity
        np.testing.assert_allclose(after, theta, atol=1e-6)


def test_adam_is_fedadam_without_bias_correction(tiny):
    theta, rounds, scored = run(tiny, **settings("adam"))
    m, v = 0.0, 0.01**2
    for (down, mean), after in zip(rounds, scored, strict=True):
        np.testing.assert_allclose(down, theta, atol=1e-6)
        m = 0.7 * m + 0.3 * (mean - theta)
        v = 0.9 * v + 0.1 * (mean - theta) ** 2
        theta = theta + 0.01 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(after, theta, atol=1e-6)


def test_acg_sends_a_model_ahead_of_the_one_that_is_scored(tiny):
    theta, rounds, scored = run(tiny, **settings("acg"))
    m = np.zeros_like(theta)
    for (down, mean), after in zip(rounds, scored, strict=True):
        np.testing.assert_allclose(down, theta + 0.85 * m, atol=1e-6)
        m = 0.85 * m + (mean - down)
        theta = theta + m
        np.testing.assert_allclose(after, theta, atol=1e-6)
    assert np.abs(m).max() > 1e-3


def test_the_average_over_rounds_is_scored_while_clients_get_the_live_model(tiny):
    start, rounds, scored = run(tiny, **settings("average"))
    live = [mean for _, mean in rounds]
    for down, before in zip([down for down, _ in rounds], [start, *live], strict=False):
        np.testing.assert_allclose(down, before, atol=1e-6)
    for t, after in enumerate(scored):
        shares = 0.6 ** np.arange(t, -1, -1.0)
        expected = np.average(live[: t + 1], axis=0, weights=shares)
        np.testing.assert_allclose(after, expected, atol=1e-6)


def test_a_decay_of_one_is_the_mean_of_all_rounds(tiny):
    _, rounds, scored = run(tiny, federation__rounds=3, server__average=1.0)
    np.testing.assert_allclose(scored[-1], np.mean([mean for _, mean in rounds], 0), atol=1e-6)


def test_the_scores_are_those_of_the_average(tiny):
    federation = tiny("fedavg", **settings("average"))
    record = federation.run()[-1]
    y = federation.task.clients.test_set(None)[1]
    for state, same in ((federation.state, True), (federation.server.live(federation.state), 0)):
        correct = (federation.engine.predict(state)() == y).double().mean()
        assert (float(correct) == pytest.approx(record.server["accuracy"])) == bool(same)


def test_without_options_the_state_and_the_run_are_as_ever(tiny):
    federation = tiny("fedavg")
    assert federation.config.server.is_plain
    assert not under("server/", federation.state)
    one = result_of(federation)
    # With momentum 0 and learning rate 1 the step is the average again, up to rounding.
    other = result_of(tiny("fedavg", server__optimizer="momentum", server__momentum=0.0))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_keeps_every_bit(tiny, name):
    options = settings(name, federation__rounds=3)
    whole, resumed = (tiny("cafedcl", **options) for _ in range(2))
    whole.step()
    interrupted = pack(*whole.snapshot())
    result = result_of(whole)
    resumed.restore(*unpack(interrupted))
    assert first_difference(result, result_of(resumed)) is None


@pytest.mark.parametrize("name", ["momentum", "all"])
def test_a_skipped_round_changes_nothing(tiny, name):
    options = settings(name, federation__min_replies=3, federation__dropout=1.0)
    federation = tiny("fedavg", **options)
    before, _ = federation.snapshot()
    assert federation.step().status == "skipped"
    after, _ = federation.snapshot()
    assert first_difference(before, after) is None


@pytest.mark.parametrize("defence", ["clip", "median"])
def test_a_defence_measures_updates_from_what_was_sent(tiny, defence):
    """Ahead of the model by its momentum, the weights that clients began with are others."""
    federation = tiny("fedavg", **settings("acg", defence__kind=defence))
    federation.step()
    aggregator = federation.aggregator()
    sent = federation.down().tensors[f"model/{WEIGHT}"]
    assert torch.equal(aggregator.updates.start[WEIGHT], sent)
    assert not torch.equal(federation.state[f"model/{WEIGHT}"], sent)


def test_running_statistics_are_averaged_and_never_extrapolated(tiny):
    """A running variance is a buffer, not a parameter; extrapolated, it may become negative."""
    setup = prepare(Case("fedavg", {"server.optimizer": "momentum"}).config())
    setup.task.network.head.register_buffer("running_var", torch.ones(3))
    task = replace(setup.task, initial=dict(setup.task.network.state_dict()))
    optimizer = ServerOptimizer(setup.config.server, task)
    state = optimizer.start({f"model/{name}": value for name, value in task.initial.items()})
    state["server/optimizer/velocity/head.bias"] += 1
    after = optimizer.step(state, {**state, "model/head.running_var": torch.full((3,), 0.1)})
    assert after["model/head.running_var"].tolist() == pytest.approx([0.1] * 3)
    assert not torch.equal(after["model/head.bias"], state["model/head.bias"])


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedproto", {"server__optimizer": "adam"}, "server.optimizer = adam: fedproto averages"),
        ("local", {"server__optimizer": "acg"}, "local averages no model"),
        ("fedproto", {"server__average": 0.9}, "server.average = 0.9: fedproto has no server"),
    ],
)
def test_a_method_without_a_model_to_step_is_refused_in_one_line(tiny, method, options, message):
    with pytest.raises(CafedclError, match=message) as error:
        tiny(method, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.5}, "the optimizer 'none' does not use it"),
        ({"optimizer": "acg", "lr": 0.5}, "or choose momentum or adam"),
        ({"optimizer": "sgd"}, "server.optimizer"),
    ],
)
def test_an_option_that_is_not_used_is_refused(options, message):
    with pytest.raises(CafedclError, match=message):
        resolve({"method": {"name": "fedavg"}, "server": options})


@pytest.mark.parametrize("check", ["rounds", "seed", "broadcast", "engines", "wire"])
def test_every_engine_trains_from_what_is_sent(check):
    """What is scored is another model, which must not be taken for it."""
    settings = {"server.optimizer": "acg", "server.average": 0.9}
    check_method("fednh", settings, only=check)
