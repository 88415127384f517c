"""Progress in a notebook: one line with a bar that is updated as rounds end."""

import sys
from html import escape
from importlib import import_module
from typing import Any

from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation
from cafedcl.terminal.overview import describe_round
from cafedcl.terminal.progress import Pace


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    # A kernel has already loaded this package; nothing else needs it.
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or "ipykernel" not in sys.modules:
        return False
    shell = ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def notebook_callbacks() -> list[Callback]:
    """Return what shows progress in a notebook; nothing elsewhere."""
    return [NotebookProgress()] if in_notebook() else []


class NotebookProgress(Callback):
    """A bar with the round, the time left and the last scores."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.shown: Any = None
        self.notices: list[str] = []
        self.scores = ""

    def noticed(self, federation: Federation, message: str) -> None:
        """Show the notice below the bar."""
        self.notices.append(message)
        self._show(federation)

    def round_began(self, federation: Federation, clients: int) -> None:  # noqa: ARG002
        """Show the bar before the first round is done."""
        self._show(federation)

    def round_done(self, federation: Federation, record: Record) -> None:
        """Show the scores of the round."""
        self.pace.round_done(record)
        self.scores = describe_round(record.line())
        self._show(federation)

    def _show(self, federation: Federation) -> None:
        # A notebook has it; it is not a dependency of the package.
        show: Any = import_module("IPython.display")
        total = federation.options.rounds
        left = self.pace.left(total - federation.round)
        words = f"{federation.config.label}: round {federation.round} of {total}, {left} left"
        notes = "".join(f"<div>note: {escape(message)}</div>" for message in self.notices)
        page = show.HTML(
            f"<div>{escape(words)}</div>"
            f'<progress value="{federation.round}" max="{total}" style="width:24em"></progress>'
            f"<div>{escape(self.scores)}</div>{notes}"
        )
        if self.shown is None:
            self.shown = show.display(page, display_id=True)
        else:
            self.shown.update(page)
