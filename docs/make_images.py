"""Draw docs/images/demo.svg: the demo in a terminal.

python docs/make_images.py
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from cafedcl.cli import run as cli
from cafedcl.federation.callback import Callback
from cafedcl.terminal.progress import LiveProgress

SCREEN = Console(
    record=True, width=130, force_terminal=True, color_system="truecolor", highlight=False
)


@contextmanager
def last_frame(*_: object) -> Iterator[list[Callback]]:
    """Draw only the last frame of the live view."""
    progress = LiveProgress(SCREEN)
    yield [progress]
    SCREEN.print(progress.live.renderable)


def main() -> None:
    """Run the demo in a recorded terminal."""
    cli.console = lambda: SCREEN
    cli.watching = last_frame
    with tempfile.TemporaryDirectory() as folder:
        cli.demo(Path(folder) / "runs" / "demo", 15)
    images = Path(__file__).parent / "images"
    images.mkdir(exist_ok=True)
    text = SCREEN.export_svg(title="make demo")
    (images / "demo.svg").write_text(text.replace(folder + "/", ""), encoding="utf-8")


if __name__ == "__main__":
    main()
