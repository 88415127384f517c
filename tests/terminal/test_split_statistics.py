import itertools

import numpy as np
import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.terminal.split_statistics import (
    DrawnSplit,
    draw_splits,
    label_divergence,
    statistics,
)


def test_the_numbers_of_a_split_are_those_counted_by_hand():
    numbers = statistics(torch.tensor([[4, 0, 0], [1, 1, 2], [0, 6, 0]]))
    assert (numbers.clients, numbers.images) == (3, 14)
    assert (numbers.smallest, numbers.largest) == (4, 6)
    assert numbers.mean_size == pytest.approx(14 / 3)
    assert (numbers.fewest_classes, numbers.most_classes) == (1, 3)
    assert numbers.mean_classes == pytest.approx(5 / 3)
    assert numbers.imbalance_ratio == pytest.approx(7 / 2)
    assert statistics(torch.tensor([[1, 0]])).imbalance_ratio is None


def test_the_divergence_is_the_mean_total_variation_over_pairs():
    counts = np.random.default_rng(0).integers(0, 9, (6, 4)) + 1
    shares = counts / counts.sum(1, keepdims=True)
    pairs = [np.abs(a - b).sum() / 2 for a, b in itertools.combinations(shares, 2)]
    assert label_divergence(torch.from_numpy(counts)) == pytest.approx(np.mean(pairs))
    assert label_divergence(torch.tensor([[5, 0], [0, 1]])) == 1
    assert label_divergence(torch.tensor([[5, 5], [1, 1]])) == 0
    assert label_divergence(torch.tensor([[5, 5]])) == 0


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_several_splits_are_drawn_side_by_side(tmp_path, suffix):
    counts = torch.randint(0, 50, (20, 10))
    classes = [str(c) for c in range(10)]
    path = tmp_path / f"figure.{suffix}"
    draw_splits(
        [
            DrawnSplit("one", counts, classes, [f"site {i}" for i in range(20)]),
            DrawnSplit("two", counts, classes),
        ],
        path,
    )
    assert path.stat().st_size > 5000


def test_a_figure_that_cannot_be_written_is_one_clear_line(tmp_path):
    counts = torch.ones(2, 2, dtype=torch.int64)
    for path in (tmp_path / "none" / "x.png", tmp_path / "x.nonsense"):
        with pytest.raises(CafedclError, match="the figure cannot be written"):
            draw_splits([DrawnSplit("one", counts, ["a", "b"])], path)
