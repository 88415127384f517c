"""Fonts for names in any script in figures, as far as they are installed."""

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cafedcl.core.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USUAL = "DejaVu Sans"
"""Matplotlib brings this font. It has Latin, Greek, Cyrillic and Arabic letters."""
OTHERS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Microsoft YaHei",
    "SimHei",
    "Yu Gothic",
    "Malgun Gothic",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Nirmala UI",
    "Leelawadee UI",
)
"""Fonts of Linux, Windows and macOS with other scripts; those that are installed are used."""

ALREADY_NAMED: set[str] = set()
"""Characters that no font has and that the user has been warned about."""


def save_figure(figure: "Figure", file: Path | IO[bytes], **how: Any) -> None:
    """Save a figure whose texts may be in any script.

    If no font here has a character, a box stands for it, and one line says so.
    """
    from matplotlib.font_manager import get_font_names
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if lacking(text.get_text(), [USUAL])]
    missing = ""
    if texts:
        fonts = [USUAL, *(name for name in OTHERS if name in get_font_names())]
        for text in texts:
            text.set_fontfamily(fonts)
        missing = lacking("".join(text.get_text() for text in texts), fonts)
    with warnings.catch_warnings():
        # Matplotlib warns about every character, each time that it draws one.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        figure.savefig(file, **how)
    if missing:
        say_once(missing)


def say_once(missing: str) -> None:
    """Report characters that no font has, unless they were reported for another figure."""
    if not ALREADY_NAMED.issuperset(missing):
        ALREADY_NAMED.update(missing)
        line = (
            f"no font here has {missing[:20]}: boxes stand for such characters in figures; install "
            "a font that has them, such as Noto Sans CJK"
        )
        print(printable(line), file=sys.stderr)


def lacking(text: str, fonts: Iterable[str]) -> str:
    """Return the characters of a text that none of these fonts has, each once."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    if text.isascii():
        # Almost every text is ASCII, and fonts are slow to open.
        return ""
    unknown = {character for character in text if character.isprintable()}
    for name in fonts:
        font = get_font(findfont(FontProperties(name)))
        unknown = {it for it in unknown if not font.get_char_index(ord(it))}
    return "".join(sorted(unknown))
