"""The loop of a process that executes one run after another for `cafedcl compare`."""

import json
import os
import sys
from collections.abc import Callable

Execute = Callable[[list[str]], int]
"""Executes a run with the given arguments, and returns its exit status."""


def take_runs(execute: Execute) -> None:
    """Execute the runs that standard input lists, one line of JSON each, until it is closed.

    The exit status of each run is a line on standard output. The run itself uses neither stream: it
    reads nothing, prints nothing, and its standard error goes to its log.
    """
    orders = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    for line in orders:
        order = json.loads(line)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(log, 2)
        os.close(log)
        status = execute(order["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(f"{status}\n")
        answers.flush()
