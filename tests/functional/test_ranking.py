import numpy as np
import pytest
import torch

from cafedcl.functional.metrics import confusion
from cafedcl.functional.ranking import f1_scores, one_against_rest


def drawn(seed: int, digits: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities that know something of the labels; with few digits, many are equal."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, 200)
    scores = rng.normal(size=(200, 4)) + 1.5 * np.eye(4)[y]
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    if digits is not None:
        p = p.round(digits)
    return torch.from_numpy(p), torch.from_numpy(y)


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["distinct", "ties", "mostly ties"])
@pytest.mark.parametrize("specificity", [0.8, 0.95])
def test_each_class_against_the_rest_is_scored_as_by_scikit_learn(digits, specificity) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    p, y = drawn(3, digits)
    found = one_against_rest(p, y, specificity)
    for c in range(4):
        truth = (y == c).numpy()
        chance = p[:, c].numpy()
        false_alarms, sensitivity, _ = roc_curve(truth, chance, drop_intermediate=False)
        best = max(sensitivity[false_alarms <= 1 - specificity + 1e-9])
        assert float(found["auroc"][c]) == pytest.approx(roc_auc_score(truth, chance), abs=1e-6)
        assert float(found["auprc"][c]) == pytest.approx(
            average_precision_score(truth, chance), abs=1e-6
        )
        assert float(found["sensitivity"][c]) == pytest.approx(best, abs=1e-6)


def test_a_class_that_is_never_or_always_there_has_no_score() -> None:
    p = torch.tensor([[0.7, 0.3, 0.0], [0.6, 0.4, 0.0]])
    found = one_against_rest(p, torch.tensor([0, 0]), 0.9)
    assert all(value.isnan().all() for value in found.values())


def test_f1_is_that_of_scikit_learn_for_the_classes_with_test_images() -> None:
    from sklearn.metrics import f1_score

    p, y = drawn(5, None)
    y = torch.where(y == 2, 1, y)
    predicted = p.argmax(1)
    found = f1_scores(confusion(predicted, y, 4))
    expected = f1_score(y, predicted, labels=range(4), average=None)
    assert found[2].isnan()
    assert found[[0, 1, 3]].tolist() == pytest.approx(expected[[0, 1, 3]].tolist())
