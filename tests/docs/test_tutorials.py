"""The tutorials are notebooks without outputs, whose links lead somewhere.

That they run is checked when the website is built: there every cell is executed.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_tutorials_are_numbered_from_one() -> None:
    assert [path.name[:3] for path in NOTEBOOKS] == [
        f"{number:02d}-" for number in range(1, len(NOTEBOOKS) + 1)
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_nothing_that_a_run_made_is_stored(self, path: Path) -> None:
        notebook = read(path)
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        for cell in notebook["cells"]:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None

    def test_it_has_one_title_and_says_where_to_go_on(self, path: Path) -> None:
        words = ["".join(c["source"]) for c in read(path)["cells"] if c["cell_type"] == "markdown"]
        titles = [line for text in words for line in text.splitlines() if line.startswith("# ")]
        assert len(titles) == 1
        assert "## Where to go on" in words[-1]

    def test_links_lead_somewhere(self, path: Path) -> None:
        for cell in read(path)["cells"]:
            if cell["cell_type"] != "markdown":
                continue
            for target in re.findall(r"\]\(([^)]+)\)", "".join(cell["source"])):
                if target.startswith("https://"):
                    continue
                file, _, anchor = target.partition("#")
                page = path.parent / file
                assert page.exists(), f"{path.name} links to {target}"
                if anchor:
                    assert anchor in anchors(page), f"{path.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
