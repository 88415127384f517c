import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.core.errors import CafedclError
from cafedcl.functional.metrics import (
    KINDS,
    Evaluator,
    client_accuracy,
    confusion,
    count_correct,
    predictions,
    recalls,
    shot_groups,
    spread_of,
)

COUNTS = torch.tensor([[5, 0, 1, 2], [0, 30, 3, 0], [100, 0, 0, 7]])


@st.composite
def worlds(draw):
    """Classes, labels and predictions of a test set, and training counts of some clients."""
    classes, clients = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    label = st.integers(0, classes - 1)
    pairs = draw(st.lists(st.tuples(label, label), min_size=1, max_size=30))
    rows = st.lists(st.integers(0, 60), min_size=classes, max_size=classes).filter(any)
    counts = draw(st.lists(rows, min_size=clients, max_size=clients))
    y, predicted = zip(*pairs, strict=True)
    return classes, list(y), list(predicted), counts


def recall_by_hand(y, predicted, classes):
    found = []
    for c in range(classes):
        correct = [p == c for t, p in zip(y, predicted, strict=True) if t == c]
        found.append(sum(correct) / len(correct) if correct else math.nan)
    return found


def mean(values):
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else None


def same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name] == (None if value is None else pytest.approx(value, abs=1e-6)), name


def spread_by_hand(values):
    known = sorted(v for v in values if not math.isnan(v))
    if not known:
        return {"client_mean": None, "client_std": None, "client_worst": None}
    worst = known[: max(1, len(known) // 10)]
    return {
        "client_mean": statistics.fmean(known),
        "client_std": statistics.pstdev(known),
        "client_worst": statistics.fmean(worst),
    }


def shots_by_hand(recall, counts, many, few):
    groups = {"many": [], "medium": [], "few": []}
    for c, value in enumerate(recall):
        total = sum(row[c] for row in counts)
        groups["many" if total > many else "few" if total < few else "medium"].append(value)
    return {name: mean(values) for name, values in groups.items()}


def by_client_by_hand(recall, counts):
    scores = []
    for row in counts:
        tested = [(n, r) for n, r in zip(row, recall, strict=True) if not math.isnan(r)]
        total = sum(n for n, _ in tested)
        scores.append(sum(n * r for n, r in tested) / total if total else math.nan)
    return scores


@given(worlds())
@settings(max_examples=60)
def test_confusion_and_recalls_are_counted(world):
    classes, y, predicted, _ = world
    table = confusion(torch.tensor(predicted, dtype=torch.int16), torch.tensor(y), classes)
    pairs = list(zip(y, predicted, strict=True))
    assert table.tolist() == [[pairs.count((r, c)) for c in range(classes)] for r in range(classes)]
    assert recalls(table).tolist() == pytest.approx(
        recall_by_hand(y, predicted, classes), nan_ok=True
    )


@given(worlds())
@settings(max_examples=60)
def test_the_server_is_scored_by_loops_over_images_clients_and_classes(world):
    from sklearn.metrics import f1_score

    classes, y, predicted, counts = world
    evaluator = Evaluator(torch.tensor(counts), torch.tensor(y), (), (50, 20))
    scores, tables = evaluator.server(torch.tensor(predicted, dtype=torch.int16))
    recall = recall_by_hand(y, predicted, classes)
    clients = by_client_by_hand(recall, counts)
    same(
        scores,
        {
            "accuracy": sum(t == p for t, p in zip(y, predicted, strict=True)) / len(y),
            "balanced": mean(recall),
            "worst_class": min(r for r in recall if not math.isnan(r)),
            "macro_f1": f1_score(
                y, predicted, labels=sorted(set(y)), average="macro", zero_division=0
            ),
            **spread_by_hand(clients),
            **shots_by_hand(recall, counts, 50, 20),
        },
    )
    assert tables["server/clients"].tolist() == pytest.approx(clients, abs=1e-6, nan_ok=True)
    assert int(tables["server/confusion"].sum()) == len(y)


@given(worlds(), st.integers(0, 3))
@settings(max_examples=60)
def test_a_client_model_is_scored_by_its_own_label_distribution(world, client):
    classes, y, predicted, counts = world
    client %= len(counts)
    evaluator = Evaluator(torch.tensor(counts), torch.tensor(y), (), (50, 20))
    called = {
        "all": torch.tensor(predicted, dtype=torch.int16),
        "held": torch.tensor(y, dtype=torch.int16),
    }
    results = evaluator.own(client, count_correct(called, torch.tensor(y), classes))
    recall = recall_by_hand(y, predicted, classes)
    assert float(results["all/score"]) == pytest.approx(
        by_client_by_hand(recall, counts)[client], abs=1e-6, nan_ok=True
    )
    right = sum(t == p for t, p in zip(y, predicted, strict=True))
    assert float(results["all/accuracy"]) == pytest.approx(right / len(y))
    assert results["all/recall"].tolist() == pytest.approx(recall, abs=1e-6, nan_ok=True)
    assert float(results["held/accuracy"]) == 1


@given(worlds(), st.data())
@settings(max_examples=60)
def test_when_the_test_set_is_dealt_to_clients_each_is_scored_on_its_part(world, data):
    classes, y, predicted, counts = world
    cuts = sorted(
        data.draw(
            st.lists(st.integers(0, len(y)), min_size=len(counts) - 1, max_size=len(counts) - 1)
        )
    )
    edges = [0, *cuts, len(y)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    evaluator = Evaluator(
        torch.tensor(counts), torch.tensor(y), tuple(p.stop - p.start for p in parts), (50, 20)
    )
    scores, tables = evaluator.server(torch.tensor(predicted))
    right = [t == p for t, p in zip(y, predicted, strict=True)]
    clients = [statistics.fmean(right[part]) if right[part] else math.nan for part in parts]
    same(
        {k: scores[k] for k in ("client_mean", "client_std", "client_worst")},
        spread_by_hand(clients),
    )
    assert tables["server/clients"].tolist() == pytest.approx(clients, abs=1e-6, nan_ok=True)
    for client, part in enumerate(parts):
        if right[part]:
            own = evaluator.own(
                client,
                count_correct(
                    {"all": torch.tensor(predicted[part])}, torch.tensor(y[part]), classes
                ),
            )
            assert float(own["all/score"]) == pytest.approx(clients[client])
            assert own["all/recall"].tolist() == pytest.approx(
                recall_by_hand(y[part], predicted[part], classes), abs=1e-6, nan_ok=True
            )
    weighted = sum(
        (p.stop - p.start) * score for p, score in zip(parts, clients, strict=True) if right[p]
    )
    assert scores["accuracy"] == pytest.approx(weighted / len(y))


@given(worlds(), st.data())
@settings(max_examples=60)
def test_a_survey_gives_the_scores_of_the_parts_laid_together(world, data):
    """Counts of sites on their own parts give the same scores as all images in one place."""
    classes, y, predicted, counts = world
    cuts = sorted(
        data.draw(
            st.lists(st.integers(0, len(y)), min_size=len(counts) - 1, max_size=len(counts) - 1)
        )
    )
    sizes = tuple(b - a for a, b in itertools.pairwise([0, *cuts, len(y)]))
    together = Evaluator(torch.tensor(counts), torch.tensor(y), sizes, (50, 20))
    parts = zip(torch.tensor(predicted).split(sizes), torch.tensor(y).split(sizes), strict=True)
    told = [count_correct({"all": called}, labels, classes) for called, labels in parts]
    survey = {name: torch.stack([answer[name] for answer in told]) for name in ("tested", "all")}
    apart = Evaluator(
        torch.tensor(counts), torch.zeros(0, dtype=torch.int64), (), (50, 20), apart=True
    )
    scores, tables = apart.surveyed(survey)
    expected, behind = together.server(torch.tensor(predicted))
    # F1 needs the predictions of the images that were not recognised.
    del expected["macro_f1"]
    same(scores, expected)
    table = behind["server/confusion"]
    assert tables["scores/server/tested"].tolist() == table.sum(1).tolist()
    assert tables["scores/server/recall"].tolist() == pytest.approx(
        recalls(table).tolist(), abs=1e-6, nan_ok=True
    )
    assert tables["server/clients"].tolist() == pytest.approx(
        behind["server/clients"].tolist(), nan_ok=True
    )
    assert "server/confusion" not in tables


def test_a_survey_that_nobody_answers_has_no_scores():
    evaluator = Evaluator(COUNTS, torch.zeros(0, dtype=torch.int64), (), (100, 5), apart=True)
    scores, _ = evaluator.surveyed(
        {name: torch.zeros(3, 4, dtype=torch.int64) for name in ("tested", "all")}
    )
    assert set(scores.values()) == {None}


def test_client_accuracy_leaves_out_classes_nobody_tests():
    recall = torch.tensor([1.0, 0.5, math.nan, 0.0]).double()
    expected = [5 / 7, 0.5, 100 / 107]
    assert client_accuracy(recall, COUNTS).tolist() == pytest.approx(expected)
    assert client_accuracy(recall.expand(3, 4), COUNTS).tolist() == pytest.approx(expected)


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=45))
@settings(max_examples=60)
def test_spread_is_mean_population_deviation_and_the_worst_tenth(values):
    same(spread_of(torch.tensor(values, dtype=torch.float64)), spread_by_hand(values))


def test_the_worst_tenth_of_thirty_clients_are_three():
    assert spread_of(torch.arange(30.0))["client_worst"] == 1


def test_shot_groups_follow_the_global_training_counts():
    recall = torch.tensor([0.9, 0.5, 0.1, 0.3])
    assert shot_groups(recall, COUNTS, (100, 5)) == pytest.approx(
        {"many": 0.9, "medium": 0.4, "few": 0.1}
    )
    assert shot_groups(recall, COUNTS, (105, 4)) == {
        "many": None,
        "medium": pytest.approx(0.45),
        "few": None,
    }


def test_shots_in_the_wrong_order_are_refused_so_that_no_class_is_in_two_groups(tiny):
    with pytest.raises(CafedclError, match="shots"):
        tiny("fedavg", evaluate__shots=[20, 100])


def test_scores_over_own_models_leave_out_clients_that_were_not_evaluated():
    y = torch.tensor([0, 1, 2, 3, 3, 1])
    evaluator = Evaluator(COUNTS, y, (), (100, 5))
    table = evaluator.no_own()
    none = evaluator.own_scores(table)
    assert all(none[name] is None for name in none)
    by_client = {0: [0, 1, 1, 3, 0, 0], 2: [0, 0, 2, 0, 0, 1]}
    for client, predicted in by_client.items():
        called = {"all": torch.tensor(predicted), "held": y, "prior": y}
        for name, value in evaluator.own(client, count_correct(called, y, 4)).items():
            table[name][client] = value
    recall = [recall_by_hand(y.tolist(), predicted, 4) for predicted in by_client.values()]
    scores = [
        by_client_by_hand(r, COUNTS.tolist())[k] for k, r in zip(by_client, recall, strict=True)
    ]
    per_class = [mean([r[c] for r in recall]) for c in range(4)]
    by_number = dict(zip(by_client, recall, strict=True))
    held = {k: [c for c in range(4) if COUNTS[k, c] > 0] for k in by_client}
    held_recall = [mean([by_number[k][c] for c in held[k]]) for k in by_client]
    held_classes = sorted({c for classes in held.values() for c in classes})

    def of_holders(c):
        return [by_number[k] for k in by_client if c in held[k]]

    same(
        evaluator.own_scores(table),
        {
            "accuracy": (3 / 6 + 3 / 6) / 2,
            "balanced": mean([mean(r) for r in recall]),
            **spread_by_hand(scores),
            "held_mean": 1.0,
            "held_std": 0.0,
            "prior_mean": 1.0,
            "prior_std": 0.0,
            "prior_worst": 1.0,
            "client_balanced": mean(held_recall),
            "worst_class": min(mean([r[c] for r in of_holders(c)]) for c in held_classes),
            "prior_balanced": 1.0,
            "prior_worst_class": 1.0,
            **shots_by_hand(per_class, COUNTS.tolist(), 100, 5),
        },
    )


def test_a_client_may_predict_among_all_classes_among_its_own_or_by_what_it_knows_of_its_labels():
    scores = torch.tensor([[3.0, 1.0, 0.5, 0.0], [0.0, 2.0, 1.9, 9.0]])
    prior = torch.tensor([0.0, 0.2, 0.8, 0.0]).log()
    found = predictions(scores, prior)
    # Classes 0 and 3 are absent; class 2 is four times as frequent as class 1, which is 1.39.
    assert dict(zip(KINDS, found.T.tolist(), strict=True)) == {
        "all": [0, 3],
        "held": [1, 1],
        "prior": [2, 2],
    }


def test_without_a_prior_all_kinds_agree():
    scores = torch.randn(20, 5)
    found = predictions(scores, torch.zeros(5))
    assert (found == scores.argmax(1)[:, None]).all()
