import io

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cafedcl.terminal.console import console, headed
from cafedcl.terminal.printable_console import PrintableConsole

NAMES = ["[/]", "[red]a", "[bold]b[/bold]", ":smile:", "[link=x]y", "\\[c]"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    screen = console()
    screen.print(name)
    screen.print(headed(name, name))
    screen.print(table)
    screen.print(Panel(name, title=Text(name)))
    assert capsys.readouterr().out.count(name) == 9


def test_only_sequences_of_the_console_itself_reach_a_terminal() -> None:
    out = io.StringIO()
    screen = PrintableConsole(
        file=out, force_terminal=True, highlight=False, markup=False, width=60
    )
    table = Table("head\x1b[2J")
    table.add_row(Text("cell\x1b]0;title\x07", style="bold"))
    screen.print("line\x1b[31m", style="red")
    screen.print(table)
    with screen.status("busy"):
        pass
    text = out.getvalue()
    assert "line\u241b[31m" in text
    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
    assert "\x1b[31mline" in text, "its own colours are still there"
    assert "\x1b[?25l" in text, "and its own control sequences"
