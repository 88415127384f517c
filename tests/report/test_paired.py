import sys

import pytest

from cafedcl.report.paired import on_shared_seeds, p_values, paired


def test_differences_without_spread() -> None:
    assert p_values([0.0, 0.0]) == (None, None, "")
    t, wilcoxon, _ = p_values([1.0, 1.0, 1.0])
    assert t is None
    assert wilcoxon == pytest.approx(0.25)


def test_the_spread_of_rounding_is_not_tested() -> None:
    """One image of 359 in either seed, as two float32 numbers and as six digits have it."""
    for differences in ([100 / 359, 100 / 359 + 3e-6], [0.2785, 0.2786], [-1e-9, 1e-9]):
        assert p_values(differences)[0] is None
    assert p_values([0.28, 0.29])[0] == pytest.approx(0.0112, abs=1e-3)


def test_ranks_are_of_differences_without_their_rounding() -> None:
    assert p_values([1e-6] * 6)[1] is None
    whole = [1.0, 1.0, 2.0, -1.0, 3.0, 1.0]
    noisy = [value + 1e-9 * number for number, value in enumerate(whole)]
    assert p_values(noisy)[1] == p_values(whole)[1]


def test_without_scipy_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert p_values([1.0, 2.0]) == (None, None, "significance needs scipy (pip install scipy)")


def test_only_seeds_that_both_have_are_compared() -> None:
    assert paired({0: 3.0, 1: 5.0, 2: 7.0}, {2: 1.0, 1: 1.0, 4: 9.0}) == [4.0, 6.0]


def test_scores_are_of_the_seeds_that_all_rows_have() -> None:
    scores = {"a": {0: 1.0, 1: 2.0}, "b": {1: 3.0, 2: 4.0}, "without": {}}
    assert on_shared_seeds(scores) == {"a": {1: 2.0}, "b": {1: 3.0}, "without": {}}
    apart = {"a": {0: 1.0}, "b": {1: 3.0}}
    assert on_shared_seeds(apart) == apart
    assert on_shared_seeds({}) == {}
