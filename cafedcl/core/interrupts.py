"""The signals that ask a process to stop: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal
sends.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt() -> None:
    """Stop whatever is being done, as Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def stop_signals_handled(stop: Callable[[], None] = interrupt) -> Iterator[None]:
    """Call ``stop`` at every signal that asks to stop while a block runs.

    A signal that was ignored before stays ignored: `nohup` ignores SIGHUP, so that a command
    continues without its terminal.
    """
    asked = False

    def handle(number: int, _: object) -> None:
        nonlocal asked
        # A closed terminal may send it twice, once through its shell, and the second signal must
        # not interrupt the saving that the first one has started.
        if number == signal.SIGHUP and asked:
            return
        asked = True
        stop()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            # A handler that is not Python's is not known, and cannot be set again.
            signal.signal(number, before[number] or signal.SIG_DFL)


def stop_signals_end_process() -> None:
    """Let these signals end this process at once, except those that are ignored."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
