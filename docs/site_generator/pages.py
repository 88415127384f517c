"""Fills the marks of a page: a line `<!-- generated: KIND -->` becomes what the code says today.

On GitHub a mark is an invisible comment. What stands between a mark and `<!-- /generated -->` is
for GitHub only. So a page with marks reads well without them.
"""

import re
from collections.abc import Callable
from pathlib import Path

from site_generator import api, commands, links, methods, navigation, options, rooms

MARK = re.compile(
    r"^<!-- generated: (?P<kind>\S+)(?: (?P<word>\S+))? -->\n?"
    # The part for GitHub reaches to the end mark, unless another mark comes first.
    r"(?:(?P<instead>(?:(?!<!-- generated:).)*?)<!-- /generated -->\n?)?",
    re.DOTALL | re.MULTILINE,
)

MAKERS: dict[str, Callable[[re.Match[str], str], str]] = {
    "api": lambda mark, _: api.module_page(mark["word"]),
    "commands": lambda _mark, _: commands.commands_page(),
    "deployment-files": lambda _mark, _: options.deployment_files(),
    "imports": lambda mark, _: rooms.imports_table(mark["instead"]),
    "method-details": lambda _, page: methods.details(Path(page).name),
    "method-facts": lambda _, page: methods.facts(Path(page).name),
    "methods": lambda _mark, _: methods.index_table() + navigation.below("methods/*"),
    "navigation": lambda _mark, _: navigation.whole(),
    "options": lambda _mark, _: options.sections_page(),
}
"""What can stand in a mark. A maker gets the mark and the name of its page."""


def finished(page: str, text: str) -> str:
    """Return a page as Sphinx is to read it: with its marks filled in, and links that lead on."""
    return links.with_downloads(page, filled(page, links.text_of_page(page, text)))


def filled(page: str, text: str) -> str:
    """Return a page with all marks filled in."""

    def replaced(mark: re.Match[str]) -> str:
        kind = mark["kind"]
        if kind not in MAKERS:
            known = ", ".join(MAKERS)
            raise ValueError(f"{page}: generated: {kind}: there is no such mark; known: {known}")
        return MAKERS[kind](mark, page)

    return MARK.sub(replaced, text)
