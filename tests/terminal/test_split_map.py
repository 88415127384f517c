import io

import torch
from rich.console import Console

from cafedcl.terminal.split_map import split_map


def drawn(renderable: object) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_split_map_shows_every_count_and_stays_small() -> None:
    text = drawn(split_map(torch.tensor([[3, 0], [0, 41]]), ["cat", "dog"]))
    assert "41" in text
    assert text.splitlines()[0].split() == ["client", "cat", "dog", "images"]
    long = drawn(split_map(torch.tensor([[3, 4]]), ["malignant", "benign"]))
    assert "mali beni " in long
    many = drawn(split_map(torch.ones(100, 2, dtype=torch.int64), ["a", "b"]))
    assert "and 70 more clients" in many


def test_classes_whose_names_begin_alike_are_numbered() -> None:
    names = ["melanoma", "melanosis", "naevus"]
    head, row, legend = drawn(split_map(torch.tensor([[3, 4, 0]]), names)).splitlines()
    assert head.split() == ["client", "1", "2", "3", "images"]
    assert row.split() == ["0", "3", "4", "7"]
    assert legend.strip() == "classes: 1 melanoma, 2 melanosis, 3 naevus"
