"""Every preset runs, CAFedCL's presets are what they say, and methods stay as short as they claim
to be.
"""

import ast
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import cafedcl.methods
from cafedcl.core.contract import Down
from cafedcl.core.errors import CafedclError
from cafedcl.functional import contrast
from cafedcl.methods import find_method, method_names
from cafedcl.methods._readings import CAFedCLOptions
from cafedcl.task.resolve import resolve
from cafedcl.testing.case import aggregated

PRESETS = [(name, preset) for name in method_names() for preset in find_method(name)[0].presets]
SKEWED = {"split__kind": "pathological", "split__classes": 5, "federation__clients": 4}
"""Every class has two holders."""


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_resolves_to_its_options_and_runs(tiny, name, preset):
    method, table = find_method(f"{name}:{preset}")
    assert table == method.presets[preset]
    config = resolve({"method": {"name": f"{name}:{preset}"}})
    assert config.method.options != method.Options(), "a preset changes something"
    plain = config.to_plain()
    for key, value in table.items():
        section, _, option = key.rpartition(".")
        assert plain[section or "method"][option] == value
    federation = tiny(f"{name}:{preset}")
    for record in federation.run():
        assert (record.status, record.failed) == ("ok", [])
        assert all(math.isfinite(value) for value in record.loss.values())
    assert all(value.isfinite().all() for value in federation.state.values())


def test_an_option_beside_a_preset_wins():
    options = resolve(
        {"method": {"name": "cafedcl:no-geo", "lam_geo": 0.5, "tau": 0.3}}
    ).method.options
    assert (options.lam_geo, options.tau) == (0.5, 0.3)


def test_what_a_preset_recommends_for_training_is_used_unless_it_is_set():
    recommended = resolve({"method": {"name": "cafedcl:best"}})
    assert (recommended.train.lr, recommended.train.momentum) == (0.025, 0.5)
    assert (recommended.server.optimizer, recommended.server.momentum) == ("momentum", 0.8)
    other = resolve({"method": {"name": "cafedcl:best"}, "train": {"lr": 0.2, "epochs": 3}})
    assert (other.train.lr, other.train.momentum, other.train.epochs) == (0.2, 0.5, 3)
    assert other.server == recommended.server
    adamw = {"optimizer": "adamw", "lr": 0.001}
    assert resolve({"method": {"name": "cafedcl:best"}, "train": adamw}).train.momentum == 0
    same = {"optimizer": "sgd"}
    assert resolve({"method": {"name": "cafedcl:best"}, "train": same}) == recommended
    plain = resolve({"method": {"name": "cafedcl:best"}, "server": {"optimizer": "none"}})
    assert plain.server == resolve({}).server
    assert plain.train == recommended.train, "another section is not concerned"
    assert resolve(recommended.to_plain()) == recommended, "a run folder's config is complete"


def test_the_best_variant_is_the_one_that_scored_best_in_the_tuning():
    results = Path(__file__).parents[2] / "experiments" / "results"

    def best(name, method):
        tuning = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        return tuning["methods"][method]["best"]

    chosen = best("long-tail-tuning-2", "cafedcl")
    chosen |= best("distill-tuning", "cafedcl:best") | best("prior-tuning", "cafedcl:best")
    # Smoothing is a part of the class prior, which was given up.
    assert chosen.pop("method.calibrate") == 0
    assert chosen.pop("method.smoothing") > 0
    preset = {
        key if "." in key else f"method.{key}": value
        for key, value in find_method("cafedcl:best")[1].items()
    }
    assert preset == {**chosen, "train.optimizer": "sgd"}


def test_there_are_the_presets_of_the_ablation():
    presets = {name for method, name in PRESETS if method == "cafedcl"}
    ablation = {
        "no-geo",
        "no-confagg-uniform",
        "no-confagg-counts",
        "inverse-variance",
        "literal",
    }
    assert presets >= ablation
    assert ("moon", "cifar10") in PRESETS


# CAFedCL's presets


def test_no_geo_trains_the_weights_of_geometry_by_the_letter(tiny):
    without, letter, usual = (
        tiny("cafedcl:no-geo"),
        tiny(method__geo="literal"),
        tiny(method__margin=2.0),
    )
    for federation in (without, letter, usual):
        federation.run()
    assert without.state.keys() == letter.state.keys()
    assert all(torch.equal(letter.state[name], value) for name, value in without.state.items())
    assert "geo" in letter.history[0].loss
    assert "geo" not in without.history[0].loss
    assert not all(torch.equal(usual.state[name], value) for name, value in without.state.items())


def round_of(tiny, preset):
    """Return a federation with its clients' replies and the state that follows from them."""
    federation = tiny(f"cafedcl:{preset}", **SKEWED)
    down = Down(0, federation.method.broadcast(federation.state))
    ups = [reply.up for reply in federation.train(down, [0, 2, 3])]
    return federation, ups, aggregated(federation.method, federation.state, ups)


def means_by_hand(ups, weight_of):
    """Σ_k w_{k,c} p_{k,c} / Σ_k w_{k,c} over the holders; also which classes have one."""
    sums, totals = {}, {}
    for up in ups:
        for c, p in zip(
            up.tensors["classes"].tolist(), up.tensors["prototypes"].double().numpy(), strict=True
        ):
            weight = weight_of(up, c)
            sums[c], totals[c] = sums.get(c, 0) + weight * p, totals.get(c, 0) + weight
    return {c: sums[c] / totals[c] for c in sums}


def check_round(federation, ups, after, weight_of, model_weights):
    means = means_by_hand(ups, weight_of)
    assert any(sum(c in up.tensors["classes"].tolist() for up in ups) > 1 for c in means), (
        "some class has two holders"
    )
    for c in range(10):
        row = after["anchors/prototypes"][c]
        if c in means:
            np.testing.assert_allclose(row, unit(means[c]), atol=1e-5)
        else:
            assert torch.equal(row, federation.state["anchors/prototypes"][c])
    for name, value in after.items():
        if name.startswith("model/"):
            models = [up.model[name.removeprefix("model/")].double().numpy() for up in ups]
            np.testing.assert_allclose(value, np.average(models, 0, model_weights), atol=1e-6)


def test_without_confidence_uniform_weights_are_plain_means_over_the_holders(tiny):
    federation, ups, after = round_of(tiny, "no-confagg-uniform")
    check_round(federation, ups, after, lambda up, c: 1.0, [1, 1, 1])
    assert all(set(up.tensors["confidence"].tolist()) == {1.0} for up in ups)


def test_without_confidence_counts_as_weights_are_equation_2(tiny):
    federation, ups, after = round_of(tiny, "no-confagg-counts")
    y, shards = federation.task.clients.data.train_y, federation.task.clients.shards.train
    check_round(
        federation,
        ups,
        after,
        lambda up, c: float((y[shards[up.client]] == c).sum()),
        [len(shards[up.client]) for up in ups],
    )


def test_inverse_variance_weights_follow_from_counts_and_the_norm_of_the_prototype(tiny):
    federation, ups, after = round_of(tiny, "inverse-variance")
    y, shards, sent = federation.task.clients.data.train_y, federation.task.clients.shards.train, {}
    for up in ups:
        classes = up.tensors["classes"].tolist()
        for c, p, weight in zip(
            classes, up.tensors["prototypes"].double(), up.tensors["confidence"], strict=True
        ):
            n = int((y[shards[up.client]] == c).sum())
            variance = n / (n - 1) * (1 - float(p @ p))
            assert 1e-3 < variance < 1
            sent[up.client, c] = n / variance
            assert float(weight) == pytest.approx(n / variance, rel=1e-3)
    totals = [sum(w for (k, _), w in sent.items() if k == up.client) for up in ups]
    check_round(federation, ups, after, lambda up, c: sent[up.client, c], totals)


def test_the_norm_of_the_prototype_tells_the_variance_of_the_unit_features(tiny):
    """σ̂² from the upload equals the sample variance of the trained model's unit embeddings."""
    federation = tiny("cafedcl:inverse-variance", **SKEWED)
    (reply,) = federation.train(Down(0, federation.method.broadcast(federation.state)), [1])
    task, shard = federation.task, federation.task.clients.shards.train[1]
    with torch.no_grad():
        z = unit(
            task.network.encoder(task.clients.data.images(task.clients.data.train_x[shard]))
            .double()
            .numpy()
        )
    y, up = task.clients.data.train_y[shard].numpy(), reply.up.tensors
    for c, weight in zip(up["classes"].tolist(), up["confidence"].tolist(), strict=True):
        mine = z[y == c]
        assert weight == pytest.approx(len(mine) / mine.var(axis=0, ddof=1).sum(), rel=1e-3)


@pytest.mark.parametrize(
    "reading", [{"prototype": "literal"}, {"prototype": "unit"}, {"prototype_of": "augmented"}]
)
def test_a_reading_whose_prototypes_do_not_tell_the_variance_is_refused(tiny, reading):
    settings = {f"method__{name}": value for name, value in reading.items()}
    with pytest.raises(CafedclError, match=r"weights = inverse-variance: it reads the var"):
        tiny("cafedcl:inverse-variance", **settings)


def test_synthetic_images_do_not_raise_the_weight_of_a_prototype_of_real_ones(tiny):
    """One real image and ten synthetic ones: weight 1, as without the synthetic ones."""
    federation = tiny("cafedcl:inverse-variance", augment__name="mixup", **SKEWED)
    counts = federation.task.clients.shards.counts
    clients = list(range(len(counts)))
    down = Down(0, federation.method.broadcast(federation.state))
    singles = 0
    for reply in federation.train(down, clients):
        sent = reply.up.tensors
        for c, p, weight in zip(
            sent["classes"].tolist(), sent["prototypes"].double(), sent["confidence"], strict=True
        ):
            n = int(counts[reply.up.client, c])
            variance = 1.0 if n == 1 else np.clip(n / (n - 1) * (1 - float(p @ p)), 1e-3, 1)
            singles += federation.task.tail.synthetic_counts[reply.up.client, c] > 0
            assert float(weight) == pytest.approx(n / variance, rel=2e-3)
    assert singles, "there are classes with synthetic images"


def test_fixed_anchors_never_move(tiny):
    federation = tiny("cafedcl:fixed-anchors", federation__rounds=3)
    start = federation.state["anchors/prototypes"].clone()
    federation.run()
    assert torch.equal(federation.state["anchors/prototypes"], start)
    weights = {name for name in federation.state if name.startswith("model/")}
    assert not any(
        torch.equal(federation.state[n], federation.task.initial[n.removeprefix("model/")])
        for n in weights
    )


def test_literal_is_the_letter_of_every_open_point_it_names():
    options = resolve({"method": {"name": "cafedcl:literal"}}).method.options
    assert {
        options.geo,
        options.geo_reduction,
        options.align,
        options.align_norm,
        options.prototype,
    } == {"literal"}
    assert (options.missing, options.unseen) == ("literal", "literal")
    assert 0 < options.epsilon < 1e-3


# geometry priors


def prior_by_hand(prior, p, pairs, margin):
    total = 0.0
    for a, b in pairs:
        cosine = float(p[a] @ p[b])
        total += {
            "margin": max(0.0, margin - math.dist(p[a], p[b])),
            "orthogonal": cosine**2,
            "simplex": (cosine + 1 / (len(p) - 1)) ** 2,
        }[prior]
    return total


@pytest.mark.parametrize("reduction", ["mean", "literal"])
@pytest.mark.parametrize("prior", ["margin", "orthogonal", "simplex"])
def test_priors_penalise_short_distances_cosines_or_departures_from_the_simplex(prior, reduction):
    rng = np.random.default_rng(0)
    p = unit(rng.normal(size=(5, 7)))
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b and a != 3]
    mask = torch.zeros(5, 5).bool()
    for a, b in pairs:
        mask[a, b] = True
    expected = prior_by_hand(prior, p, pairs, 1.4) / (len(pairs) if reduction == "mean" else 1)
    points = torch.from_numpy(p)
    assert expected > 0.01
    ours = contrast.geometry_loss(points, points, mask, 1.4, reduction, prior).item()
    assert ours == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("prior", ["margin", "orthogonal", "simplex"])
@pytest.mark.parametrize("reading", ["batch", "cross", "literal"])
def test_every_reading_of_geometry_takes_every_prior(reading, prior):
    rng = np.random.default_rng(1)
    q, p, present = (
        unit(rng.normal(size=(4, 6))),
        unit(rng.normal(size=(4, 6))),
        [True, False, True, False],
    )
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    if reading == "batch":
        mixed = np.where(np.array(present)[:, None], q, p)
        pairs = [(a, b) for a, b in pairs if present[a] or present[b]]
        expected = prior_by_hand(prior, mixed, pairs, 1.9) / len(pairs)
    elif reading == "literal":
        expected = prior_by_hand(prior, p, pairs, 1.9) / len(pairs)
    else:
        pairs = [(a, b) for a, b in pairs if present[a]]
        one = {"margin": lambda d, s: max(0.0, 1.9 - d), "orthogonal": lambda d, s: s**2}
        one["simplex"] = lambda d, s: (s + 1 / 3) ** 2
        expected = np.mean(
            [one[prior](math.dist(q[a], p[b]), float(q[a] @ p[b])) for a, b in pairs]
        )
    parts = (torch.from_numpy(q), torch.tensor(present), torch.from_numpy(p))
    ours = contrast.geometry(reading, *parts, None, 1.9, "mean", prior).item()
    assert ours == pytest.approx(expected, abs=1e-9)


def all_pairs(classes):
    return ~torch.eye(classes).bool()


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_simplex_and_orthonormal_anchors_pay_nothing_under_their_own_priors(
    classes,
):
    torch.manual_seed(0)
    frame, axes = contrast.simplex(classes, 16).double(), contrast.orthonormal(classes, 16).double()
    pairs = all_pairs(classes)

    def loss(p, prior):
        return contrast.geometry_loss(p, p, pairs, 1.0, "literal", prior).item()

    assert loss(frame, "simplex") < 1e-10
    assert loss(axes, "orthogonal") < 1e-10
    count = classes * (classes - 1)
    assert loss(axes, "simplex") == pytest.approx(count / (classes - 1) ** 2, rel=1e-5)
    assert loss(frame, "orthogonal") == pytest.approx(count / (classes - 1) ** 2, rel=1e-5)


@pytest.mark.parametrize(("prior", "cosine"), [("orthogonal", 0.0), ("simplex", -1 / 3)])
def test_moved_apart_on_the_server_anchors_approach_the_angle_of_their_prior(prior, cosine):
    torch.manual_seed(1)
    start = contrast.unit(torch.randn(4, 6).double() + 1)
    moved = contrast.separate(start, torch.ones(4).bool(), 1.0, prior, steps=1000)
    off = (moved @ moved.T)[all_pairs(4)]
    np.testing.assert_allclose(off, cosine, atol=1e-3)
    assert ((start @ start.T)[all_pairs(4)] - cosine).abs().max() > 0.1


@pytest.mark.parametrize("prior", ["orthogonal", "simplex"])
@pytest.mark.parametrize("geo", ["batch", "cross", "server"])
def test_priors_run_and_change_the_result(tiny, prior, geo):
    margin, other = tiny(method__geo=geo), tiny(method__geo=geo, method__prior=prior)
    for federation in (margin, other):
        federation.run()
    assert all(value.isfinite().all() for value in other.state.values())
    assert not torch.equal(margin.state["anchors/prototypes"], other.state["anchors/prototypes"])
    assert CAFedCLOptions().prior == "margin"


# the shape of the methods' files

FOLDER = Path(cafedcl.methods.__file__).parent


def code_lines(path):
    """How many lines are neither empty, nor imports, nor docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = (ast.Import, ast.ImportFrom)
    skipped = set()
    for node in ast.walk(tree):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, texts):
            skipped.update(range(node.lineno, node.end_lineno + 1))
    lines = path.read_text(encoding="utf-8").splitlines()
    return sum(bool(line.strip()) and n not in skipped for n, line in enumerate(lines, 1))


LONG_TAIL_BASELINES = (
    "ccvr", "creff", "fedetf", "fediic", "fedloge", "fedrod", "fedvls", "fedyoyo", "qffl",
    "spherefed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "most"),
    [("fedprox", 20), ("fedproto", 50), ("fedtgp", 85), ("cafedcl", 180)]
    + [(name, 80) for name in LONG_TAIL_BASELINES],
)
def test_a_method_is_short(name, most):
    assert code_lines(FOLDER / f"{name}.py") <= most


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_method_holds_no_training_loop(path):
    text = path.read_text(encoding="utf-8")
    assert "for epoch" not in text
    assert ".backward(" not in text
