"""The navigation of the website: its sections and the pages in each."""

SECTIONS = {
    "Start": ("install", "quickstart", "comparison"),
    "Tutorials": ("tutorials/*",),
    "Guides": (
        "data",
        "augmentation",
        "models",
        "splits",
        "runs",
        "compare",
        "report",
        "using",
        "deployment",
        "privacy",
        "attacks",
        "extending",
    ),
    "Methods": ("methods", "cafedcl"),
    "Reference": (
        "reference/options",
        "reference/commands",
        "reference/python",
        "reference/extend",
        "reference/testing",
    ),
    "Results": ("paper", "reproduction", "long-tails", "cafedcl-best", "speed", "theory", "loop"),
    "Contributing": ("contributing", "architecture", "changelog"),
}


def whole() -> str:
    """Return the navigation, one list of pages per section."""
    return "".join(toctree(pages, caption) for caption, pages in SECTIONS.items())


def below(pages: str) -> str:
    """Return the list of pages that stand below the current one."""
    return toctree((pages,))


def toctree(pages: tuple[str, ...], caption: str = "") -> str:
    """Return a list of pages for the side bar."""
    head = f":caption: {caption}\n" if caption else ""
    return f"```{{toctree}}\n:hidden:\n:glob:\n{head}\n" + "\n".join(pages) + "\n```\n\n"
