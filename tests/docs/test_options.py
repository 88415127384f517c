import dataclasses

import pytest
from site_generator.options import deployment_files, options_table, sections_page, type_words

from cafedcl.config.options import option
from cafedcl.config.sections import SECTIONS


@dataclasses.dataclass(frozen=True)
class Some:
    """Options."""

    share: float = option(0.5, "a share of $all", above=0.0, high=1.0)
    kind: str = option("one", "which kind", choices=("one", "two"))


def test_a_row_has_meaning_default_limits_and_type() -> None:
    rows = options_table(Some).splitlines()[2:4]
    assert rows == [
        r"| `share` | a share of \$all | `0.5` | \> 0, ≤ 1 | number |",
        r'| `kind` | which kind | `"one"` | one \| two | text |',
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_of_every_section_is_on_the_page(section: str) -> None:
    part = sections_page().split(f"\n## {section}\n" if section != "run" else "## run\n")[1]
    part = part.split("\n## ")[0]
    for field in dataclasses.fields(SECTIONS[section]):
        assert f"| `{field.name}` |" in part


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "true or false"),
        (tuple[str, ...], "list: text"),
        (tuple[int, int], "2 values: whole number"),
    ],
)
def test_types_are_words(hint: object, words: str) -> None:
    assert type_words(hint) == words


def test_the_files_of_a_deployment_are_there() -> None:
    server, site = deployment_files().split("### site.toml")
    assert "| `port` |" in server
    assert "| `false` |  | true or false |" in site
