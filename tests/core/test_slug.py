"""Texts as parts of file and folder names."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.core.slug import slug


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("dirichlet:0.1", "dirichlet-0.1"),
        ("pathological:2,ir=10", "pathological-2,ir=10"),
        ("../up", "up"),
        (".hidden.", "hidden"),
        ("Ärzte/Befund 1", "Ärzte-Befund-1"),
        ("", "-"),
        ("://", "-"),
    ],
)
def test_a_name_has_only_harmless_characters(text: str, name: str) -> None:
    assert slug(text) == name


@given(st.text(max_size=600))
def test_every_text_gives_a_folder_that_can_be_made(text: str) -> None:
    name = slug(text)
    assert 0 < len(name.encode()) <= 200
    assert name not in (".", "..")
    assert slug(name) == name


def test_long_names_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    names = [slug("ä" * 300 + end) for end in ("a", "b")]
    assert len({*names}) == 2
    for name in names:
        (tmp_path / name).mkdir()
    assert slug("x" * 200) == "x" * 200, "a name that fits stays as it is"
