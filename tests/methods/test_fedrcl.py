import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Up
from cafedcl.methods.fedrcl import FedRCL, FedRCLOptions, relaxed
from cafedcl.models import Encoder, Network, build_encoder
from cafedcl.testing.case import aggregated


def by_hand(features, y, tau=0.05, lam=0.7, negatives=2, penalty="hardest"):
    """SCL and PEN of one level, sample by sample; also the penalty of each sample."""
    z = [row / math.sqrt(sum(v * v for v in row)) for row in features]
    scl, pen = [], []
    for i in range(len(y)):
        s = [float(z[i] @ z[j]) for j in range(len(y))]
        positive = min(s[j] for j in range(len(y)) if y[j] == y[i])
        hardest = sorted((s[j] for j in range(len(y)) if y[j] != y[i]), reverse=True)[:negatives]
        scl.append(math.log(1 + sum(math.exp((v - positive) / tau) for v in hardest)))
        others = [s[j] for j in range(len(y)) if y[j] == y[i] and j != i]
        if penalty == "hardest":
            worst = min(others) if others and min(others) >= lam else -1
            pen.append(math.log(1 + math.exp((worst - 1) / tau)))
        else:
            above = [math.log(1 + math.exp((v - 1) / tau)) for v in others if v >= lam]
            pen.append(sum(above) / len(above) if above else 0.0)
    return float(np.mean(scl)), float(np.mean(pen)), pen


def ours(features, y, weight=None, **options):
    parts = (torch.from_numpy(np.asarray(part)) for part in (features, y))
    weight = torch.ones(len(y)).double() if weight is None else torch.from_numpy(weight)
    scl, pen = relaxed(*parts, weight, FedRCLOptions(**options))
    return scl.item(), pen.item()


def batch_features(seed=0):
    """A tight class of four, a wide class of three, a pair and a singleton."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=5)
    tight = centre + 0.1 * rng.normal(size=(4, 5))
    features = np.concatenate(
        [tight, rng.normal(size=(3, 5)), centre + 0.5 * rng.normal(size=(3, 5))]
    )
    return features, np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])


@pytest.mark.parametrize("penalty", ["hardest", "literal"])
@pytest.mark.parametrize(
    ("tau", "lam", "negatives"), [(0.05, 0.7, 2), (0.5, 0.9, 1), (0.2, -1.0, 4)]
)
def test_one_level_is_the_hardest_positive_against_the_hardest_negatives(
    penalty, tau, lam, negatives
):
    features, y = batch_features()
    scl, pen, _ = by_hand(features, y, tau, lam, negatives, penalty)
    assert ours(
        features, y, tau=tau, lam=lam, negatives=negatives, penalty=penalty
    ) == pytest.approx((scl, pen))
    assert scl > 0.1
    assert pen > 1e-6


def test_the_penalty_fires_only_where_even_the_hardest_other_positive_is_above_lambda():
    features, y = batch_features()
    _, _, pen = by_hand(features, y)
    assert min(pen[:4]) > 1e-3
    assert max(pen[4:7]) < 1e-15
    angle = math.acos(0.8)
    near = np.array(
        [[1.0, 0.0], [math.cos(angle), math.sin(angle)], [math.cos(2 * angle), math.sin(2 * angle)]]
    )
    same = np.zeros(3, dtype=int)
    fires = math.log(1 + math.exp(-0.2 / 0.05))
    quiet = math.log(1 + math.exp(-2 / 0.05))
    assert ours(near[:2], same[:2])[1] == pytest.approx(fires, rel=1e-9)
    assert ours(near[:2], same[:2], lam=0.81)[1] == pytest.approx(quiet, rel=1e-6)
    assert ours(near, same)[1] == pytest.approx((fires + 2 * quiet) / 3, rel=1e-9), (
        "only the middle one is near both"
    )
    assert ours(near, same, penalty="literal")[1] == pytest.approx(fires, rel=1e-9), (
        "every one is near another"
    )


@pytest.mark.parametrize("penalty", ["hardest", "literal"])
def test_the_penalty_is_at_most_log_2(penalty):
    features = np.outer([1.0, 2.0, 0.3, 5.0], [0.3, -0.4, 0.5])
    assert ours(features, np.zeros(4, dtype=int), penalty=penalty)[1] == pytest.approx(
        math.log(2), abs=1e-9
    )
    for seed in range(5):
        assert ours(*batch_features(seed), penalty=penalty)[1] < math.log(2)


def test_missing_negatives_are_dropped():
    features, y = batch_features()
    assert ours(features[:4], y[:4])[0] == 0
    rows = [0, 1, 9]
    scl, pen, _ = by_hand(features[rows], y[rows])
    assert ours(features[rows], y[rows]) == pytest.approx((scl, pen))
    assert ours(features[:1], y[:1]) == pytest.approx((0.0, 0.0), abs=1e-12)


def test_a_singleton_has_itself_as_its_positive():
    angle = math.acos(0.95)
    pair = np.array([[2.0, 0.0], [math.cos(angle), math.sin(angle)]])
    scl, pen = ours(pair, np.array([0, 1]))
    assert scl == pytest.approx(math.log(1 + math.exp((0.95 - 1) / 0.05)), rel=1e-9)
    assert pen == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("penalty", ["hardest", "literal"])
def test_the_gradient_is_that_of_finite_differences(penalty):
    features, y = batch_features(3)
    tensor = torch.from_numpy(features).requires_grad_()
    scl, pen = relaxed(
        tensor,
        torch.from_numpy(y),
        torch.ones(10).double(),
        FedRCLOptions(tau=0.2, penalty=penalty),
    )
    (scl + 2 * pen).backward()
    expected = np.zeros_like(features)
    for index in np.ndindex(features.shape):
        step = np.zeros_like(features)
        step[index] = 1e-6
        up, down = (by_hand(features + s, y, tau=0.2, penalty=penalty) for s in (step, -step))
        expected[index] = (up[0] + 2 * up[1] - down[0] - 2 * down[1]) / 2e-6
    np.testing.assert_allclose(tensor.grad, expected, atol=1e-7)
    assert np.abs(expected).max() > 0.01


@pytest.mark.parametrize("penalty", ["hardest", "literal"])
def test_padding_is_neither_positive_nor_negative(penalty):
    features, y = batch_features()
    rng = np.random.default_rng(1)
    padded = np.concatenate([features, features[:2], rng.normal(size=(2, 5))])
    labels, weight = np.concatenate([y, [3, 2, 0, 1]]), np.array([1.0] * 10 + [0.0] * 4)
    scl, pen, _ = by_hand(features, y, penalty=penalty)
    assert ours(padded, labels, weight, penalty=penalty) == pytest.approx((scl, pen))


@pytest.mark.parametrize("penalty", ["hardest", "literal"])
def test_positive_rescaling_of_features_changes_nothing(penalty):
    features, y = batch_features()
    scaled = features * np.random.default_rng(2).uniform(0.01, 50, size=(10, 1))
    assert ours(scaled, y, penalty=penalty) == pytest.approx(
        ours(features, y, penalty=penalty), rel=1e-9
    )


class Stretched(Encoder):
    """Three linear levels, each multiplied by a number of its own."""

    dim = 4

    def __init__(self, scales):
        super().__init__()
        torch.manual_seed(0)
        self.scales, self.layers = scales, nn.ModuleList(nn.Linear(6, width) for width in (3, 5, 4))

    def stages(self, x):
        return [scale * layer(x) for scale, layer in zip(self.scales, self.layers, strict=True)]


def terms_of(encoder, dim, x, y, visit_with, **options):
    method = FedRCL(FedRCLOptions(**options), 4, dim)
    torch.manual_seed(1)
    network = Network(encoder, method.head()).double()
    batch = Batch(torch.from_numpy(x), torch.from_numpy(y), torch.ones(len(y)).double())
    return network, {
        name: term.item()
        for name, term in method.loss(network, batch, visit_with([1.0] * 4)).items()
    }


def test_every_level_may_be_rescaled_by_itself(visit_with):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    _, plain = terms_of(Stretched((1.0, 1.0, 1.0)), 4, x, y, visit_with)
    _, other = terms_of(Stretched((7.0, 0.02, 3.0)), 4, x, y, visit_with)
    assert (plain["scl"], plain["pen"]) == pytest.approx((other["scl"], other["pen"]), rel=1e-9)
    assert plain["ce"] != pytest.approx(other["ce"], rel=1e-3)


def test_the_loss_is_the_mean_over_the_stem_and_four_stages_of_resnet18_before_their_relu(
    visit_with,
):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(6, 3, 8, 8)), np.array([0, 0, 1, 1, 2, 3])
    torch.manual_seed(0)
    encoder = build_encoder("resnet18", (3, 8, 8), 0.125)
    levels = []
    for module in (encoder.norm, *(encoder.blocks[i] for i in (1, 3, 5, 7))):
        module.register_forward_hook(
            lambda module, inputs, output: levels.append(output.detach().mean((2, 3)).numpy())
        )
    network, terms = terms_of(encoder, 64, x, y, visit_with, beta=0.25, tau=0.3, lam=0.2)
    assert [level.shape[1] for level in levels] == [8, 8, 16, 32, 64]
    assert all((level < 0).any() for level in levels)
    scl, pen = np.mean([by_hand(level, y, tau=0.3, lam=0.2)[:2] for level in levels], axis=0)
    assert pen > 1e-3
    logits = network(torch.from_numpy(x)).detach().numpy()
    ce = np.mean(
        [math.log(sum(math.exp(v - row[c]) for v in row)) for row, c in zip(logits, y, strict=True)]
    )
    assert terms == pytest.approx({"ce": ce, "scl": scl, "pen": 0.25 * pen}, rel=1e-9)


def test_at_full_width_the_levels_have_64_64_128_256_and_512_features():
    encoder = build_encoder("resnet18", (3, 32, 32), 1.0)
    with torch.no_grad():
        levels, h = Network(encoder, nn.Identity()).levels(torch.zeros(1, 3, 8, 8))
    assert [level.shape[1] for level in levels] == [64, 64, 128, 256, 512]
    assert h.shape[1] == 512


def test_the_server_averages_models_uniformly():
    arrays = np.random.default_rng(1).normal(size=(3, 2, 2))
    ups = [
        Up(k, n, {}, model={"w": torch.from_numpy(a)})
        for k, (n, a) in enumerate(zip((1, 50, 900), arrays, strict=True))
    ]
    after = aggregated(FedRCL(FedRCLOptions(), 4, 2), {"model/w": torch.zeros(2, 2).double()}, ups)
    np.testing.assert_allclose(after["model/w"], arrays.mean(0), atol=1e-12)


def test_the_defaults_are_those_of_the_authors_code(tiny):
    assert FedRCLOptions() == FedRCLOptions(
        tau=0.05, lam=0.7, beta=1.0, negatives=2, penalty="hardest"
    )
    assert tiny("fedrcl").step().traffic == tiny("fedavg").step().traffic
