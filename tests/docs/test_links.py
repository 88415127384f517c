import json

import pytest
from site_generator.links import text_of_page, with_downloads


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("speed", "../benchmarks/peers/README.md", "path:../benchmarks/peers/README.md"),
        ("speed", "../README.md", "index.md"),
        ("methods/fedavg", "../../CONTRIBUTING.md#tests", "../contributing.md#tests"),
        ("methods/fedavg", "../privacy.md#what", "../privacy.md#what"),
        ("speed", "../experiments/results/digits.json", "../experiments/results/digits.json"),
        ("speed", "https://example.org/README.md", "https://example.org/README.md"),
    ],
)
def test_markdown_outside_the_docs_is_a_page_or_a_download(
    page: str, link: str, shown: str
) -> None:
    assert with_downloads(page, f"See [this]({link}).") == f"See [this]({shown})."


def test_links_of_a_notebook_are_changed_in_its_json() -> None:
    cell = json.dumps({"source": ['see "[home](../../README.md#does-it-help)"\n']})
    changed = json.loads(with_downloads("tutorials/01-first-steps", cell))
    assert changed["source"] == ['see "[home](../index.md#does-it-help)"\n']


def test_a_page_can_be_a_file_of_the_root_with_links_as_seen_from_the_docs() -> None:
    text = text_of_page("contributing", "a stub for GitHub")
    assert text.startswith("# Contributing")
    assert "](extending.md)" in text
    assert "](docs/" not in text
    assert text_of_page("speed", "its own") == "its own"
