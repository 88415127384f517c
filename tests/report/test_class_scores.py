import numpy as np
import pytest

from cafedcl.report.class_scores import listed, only_class, summarise_classes

NAMES = ["a", "b", "c"]
COUNTS = np.array([[5, 5, 0], [9, 0, 0], [2, 2, 2]])


def test_recall_and_balanced_accuracy_come_from_the_confusion_matrix() -> None:
    confusion = np.array([[8, 2, 0], [0, 5, 5], [0, 0, 0]])
    found = summarise_classes({"server/confusion": confusion}, COUNTS, NAMES)
    assert found.recall["server"].tolist() == pytest.approx([0.8, 0.5, np.nan], nan_ok=True)
    assert found.balanced["server"] == pytest.approx(0.65)
    assert found.worst("server") == ("b", 0.5)
    assert found.imbalance == 1.0
    assert not found.skewed


def test_classes_without_test_images_are_named() -> None:
    confusion = np.array([[8, 2, 0], [0, 5, 5], [0, 0, 0]])
    found = summarise_classes({"server/confusion": confusion}, COUNTS, NAMES)
    assert found.untested == ["c"]
    assert found.gaps[-1] == "classes without test images, which no score counts: c"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
    unknown = summarise_classes({"own/all/recall": np.ones((3, 3))}, COUNTS, NAMES)
    assert unknown.untested == []


def test_classes_that_no_client_reports_are_named() -> None:
    confusion = np.array([[8, 2, 0], [0, 5, 5], [1, 0, 3]])
    counts = np.array([[4, 0, 0], [9, 7, 0]])
    found = summarise_classes({"server/confusion": confusion}, counts, NAMES)
    assert found.gaps == ["classes without reported training images, which are not learned: c"]
    assert summarise_classes({"server/confusion": confusion}, COUNTS, NAMES).gaps == []


def test_own_models_are_scored_on_the_classes_that_their_clients_hold() -> None:
    recall = np.array([[1.0, 0.5, 0.0], [0.8, 0.0, 0.0], [np.nan] * 3])
    found = summarise_classes({"own/all/recall": recall}, COUNTS, NAMES)
    assert found.recall["own"].tolist() == pytest.approx([0.9, 0.5, np.nan], nan_ok=True)
    assert found.balanced["own"] == pytest.approx((0.75 + 0.8) / 2)
    assert found.score("own", "worst_class") == 0.5
    assert found.score("server", "balanced") is None


def test_sites_that_only_count_tell_recalls_as_well() -> None:
    tables = {
        "scores/server/recall": np.array([1.0, 0.0, 0.0], np.float32),
        "scores/server/tested": np.array([80, 10, 4], np.int32),
    }
    found = summarise_classes(tables, COUNTS, NAMES)
    assert found.imbalance == 20
    assert "almost only the class 'a'; its" in found.one_class["server"]


@pytest.mark.parametrize(
    ("confusion", "expected"),
    [
        ([[97, 3], [0, 3]], None),
        ([[97, 0], [3, 0]], 0),
        ([[50, 50], [50, 50]], None),
        ([[1, 99], [1, 99]], 1),
        ([[100, 0], [0, 0]], None),
    ],
    ids=["mostly one class, rightly", "one class", "two classes", "the other", "nothing else"],
)
def test_a_model_predicts_almost_one_class_only(confusion: list[list[int]], expected) -> None:
    table = np.array(confusion)
    sums = table.sum(1)
    recall = table.diagonal() / np.where(sums > 0, sums, np.nan)
    assert only_class(recall, table.sum(0)) == expected


def test_most_clients_own_models_that_know_one_class_are_warned_of() -> None:
    recall = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.05]])
    found = summarise_classes({"own/all/recall": recall}, COUNTS, NAMES)
    assert "2 of 3 clients' own models" in found.one_class["own"], "client 1 has one class anyway"
    better = np.array([[1.0, 0.9, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.05]])
    assert not summarise_classes({"own/all/recall": better}, COUNTS, NAMES).one_class


def test_a_table_of_another_size_is_damaged() -> None:
    with pytest.raises(ValueError, match="shape"):
        summarise_classes({"server/confusion": np.eye(2, dtype=int)}, COUNTS, NAMES)


def test_a_round_in_which_every_client_failed_is_not_damaged() -> None:
    confusion = np.array([[8, 2, 0], [0, 5, 5], [0, 0, 4]])
    failed = {"own/all/recall": np.full((3, 3), np.nan), "server/confusion": confusion}
    found = summarise_classes(failed, COUNTS, NAMES)
    assert list(found.recall) == ["server"]
