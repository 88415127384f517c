"""A console that keeps control characters in printed texts from reaching the terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cafedcl.core.printable import printable


class PrintableConsole(Console):
    """A console of rich whose texts are made printable as the last step."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of what is printed; rich's own control sequences are left alone."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
