import re
from pathlib import Path

import pytest
from site_generator import navigation
from site_generator.pages import MAKERS, filled

from cafedcl.data.images import ENDINGS

DOCS = Path(__file__).parents[2] / "docs"
MARKED = [path for path in DOCS.rglob("*.md") if "<!-- generated:" in path.read_text("utf-8")]


def test_a_mark_is_replaced_together_with_what_is_for_github_only() -> None:
    text = "A\n<!-- generated: imports -->\nx --> y\n<!-- /generated -->\nB"
    table = "| folder | imports |\n| --- | --- |\n| `x` | `y` |\n\n"
    shown = filled("p", text)
    assert shown.startswith("A\nWhat each folder imports")
    assert shown.endswith(f"{table}B")


def test_a_mark_without_an_end_takes_nothing_of_the_next_one() -> None:
    text = (
        "<!-- generated: navigation -->\nkept\n<!-- generated: imports -->\n<!-- /generated -->\n"
    )
    assert "\nkept\n" in filled("p", text)


def test_a_mark_in_a_sentence_is_left_alone() -> None:
    text = "Write `<!-- generated: KIND -->` in a line of its own."
    assert filled("p", text) == text


def test_an_unknown_mark_ends_the_build() -> None:
    with pytest.raises(ValueError, match="p: generated: methds: there is no such mark"):
        filled("p", "<!-- generated: methds -->")


def test_every_mark_on_the_pages_is_known_and_every_maker_is_used() -> None:
    used = {
        kind
        for path in MARKED
        for kind in re.findall(r"^<!-- generated: (\S+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert used == set(MAKERS)


def test_every_page_is_in_the_navigation() -> None:
    listed = {page for pages in navigation.SECTIONS.values() for page in pages}
    pages = {
        str(path.relative_to(DOCS).with_suffix(""))
        for path in DOCS.rglob("*.md")
        if path.parent.name not in ("methods", "tutorials")
    }
    assert pages == {page for page in listed if "*" not in page} | {"index"}


def test_the_endings_of_image_files_are_those_that_are_read() -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    listed = page.partition("**Which files are images.**")[2].partition("\n- **")[0]
    assert set(re.findall(r"\.[a-z]+(?=[ ,])", listed)) == set(ENDINGS)
