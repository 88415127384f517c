"""Links to files of the repository, which work on GitHub as they are.

On the website, the Markdown files of the repository's root are pages, and every other file outside
docs/ is a download: Sphinx copies it. For that, Markdown needs the prefix `path:`, without which
Sphinx takes every link to a Markdown file for a page.
"""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages of the website whose text is a file in the repository's root."""
HOME_PAGES = {f"../{name}": f"{page}.md" for page, name in ROOT_PAGES.items()}
HOME_PAGES["../README.md"] = "index.md"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def text_of_page(page: str, text: str) -> str:
    """Return the text of a page: that of a file in the root, with links as seen from docs/."""
    if page not in ROOT_PAGES:
        return text
    text = (ROOT / ROOT_PAGES[page]).read_text(encoding="utf-8")
    return LINK.sub(lambda link: f"]({_seen_from_docs(link[1])}{link[2] or ''})", text)


def _seen_from_docs(target: str) -> str:
    return posixpath.relpath(target, "docs")


def with_downloads(page: str, text: str) -> str:
    """Return a page whose links to Markdown files outside docs/ lead to pages or downloads."""
    folder = posixpath.dirname(page)

    def changed(link: re.Match[str]) -> str:
        target, anchor = link.groups(default="")
        inside = posixpath.normpath(posixpath.join(folder, target))
        if inside in HOME_PAGES:
            return f"]({posixpath.relpath(HOME_PAGES[inside], folder or '.')}{anchor})"
        if inside.startswith("../") and inside.endswith(".md"):
            return f"](path:{target})"
        return link[0]

    return LINK.sub(changed, text)
