"""Write the tables of docs/reproduction.md and other pages on results from the result files.

    python experiments/reproduction.py            # write the pages
    python experiments/reproduction.py --check    # exit status 1 if a page is not up to date

A block between `<!-- table:RESULT:KIND -->` and `<!-- /table -->` is filled from RESULT.json in
experiments/results or, if there is no such file, from every RESULT*.json there: results of
`cafedcl reproduce` or of experiments/tuning.py. KINDS lists the kinds of tables. Those in ACROSS
use several results at once, as in ONE+ANOTHER:KIND.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reproduction_curves import curves_table
from reproduction_leaders import leaders_table, missing_text, settings_table
from reproduction_notes import small_print
from reproduction_paper import (
    behind_table,
    coverage_table,
    protocol_table,
    repeats_table,
    short_note,
    variants_table,
)
from reproduction_parts import labelled, parts_table
from reproduction_tables import (
    BALANCED,
    ablation_table,
    baselines_table,
    claims_table,
    methods_table,
    ranks_table,
    sensitivity_table,
    skin_table,
    tuning_table,
)

from cafedcl.compare.results import ResultRow
from cafedcl.core.errors import CafedclError, nearest

HOME = Path(__file__).parents[1]
PAGES = tuple(
    HOME / "docs" / f"{name}.md" for name in ("reproduction", "long-tails", "cafedcl-best", "paper")
)
RESULTS = HOME / "experiments" / "results"
NAMES = (
    "table1",
    "table2",
    "ablation",
    "sensitivity",
    "standins",
    "skin",
    "tuned",
    "tuning",
    "long-tail-tuning",
    "long-tail-tuning-2",
    "distill-tuning",
    "distill-2-tuning",
    "average-tuning",
    "prior-tuning",
    "prior-resnet-tuning",
    "resnet-tuning",
    "resnet-2-tuning",
    "large-tuning",
    "resnet-width-1",
    "long_tail",
    "creff",
    "best_parts",
)
BLOCK = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
MARK = re.compile(r"<!-- (?:table:\S+|/table) -->")
EMPTY = "_No result file yet._\n\n"


def of_runs(table: Callable[[Sequence[ResultRow]], str], result: Mapping[str, Any]) -> str:
    """Return a table of runs and its small print."""
    if not result["runs"]:
        return ""
    return table(result["runs"]) + small_print(result)


def of_tuned_runs(table: Callable[[Sequence[ResultRow]], str], result: Mapping[str, Any]) -> str:
    """Return a table of runs whose options are those of a tuning, which has a table of its own."""
    return table(result["runs"]) + small_print(result, own=False)


def in_short(table: Callable[[Sequence[ResultRow]], str], result: Mapping[str, Any]) -> str:
    """Return a table of runs that has its own note, or none."""
    return table(result["runs"]) if result["runs"] else ""


KINDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "methods": partial(of_runs, methods_table),
    "tests": partial(of_runs, baselines_table),
    "claims": partial(of_runs, claims_table),
    "balanced-tests": partial(of_runs, partial(baselines_table, tested=BALANCED)),
    "ablation": partial(of_runs, ablation_table),
    "parts": partial(of_runs, parts_table),
    "sensitivity": partial(of_runs, sensitivity_table),
    "skin": partial(of_runs, skin_table),
    "leaders": partial(of_tuned_runs, lambda runs: leaders_table(runs) + missing_text(runs)),
    "settings": partial(of_tuned_runs, lambda runs: settings_table(labelled(runs))),
    "curves": partial(in_short, lambda runs: curves_table(labelled(runs))),
    "tuning": tuning_table,
    "methods-in-short": partial(in_short, lambda runs: methods_table(runs) + short_note(runs)),
    "leaders-in-short": partial(
        in_short, lambda runs: leaders_table(runs) + missing_text(runs) + short_note(runs)
    ),
    "protocol": partial(in_short, protocol_table),
    "variants": partial(in_short, variants_table),
    "behind": partial(in_short, behind_table),
}
ACROSS: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "ranks": ranks_table,
    "coverage": coverage_table,
    "repeats": repeats_table,
}


def block(name: str, results: Path) -> str:
    """Return the text between the marks of a table."""
    wanted, colon, kind = name.partition(":")
    if not colon or kind not in (*KINDS, *ACROSS):
        raise CafedclError(
            f"table:{name}: RESULT:KIND is expected; {nearest(kind, [*KINDS, *ACROSS])}"
        )
    text = ""
    found = []
    for one in wanted.split("+") if kind in ACROSS else [wanted]:
        if not one.startswith(NAMES):
            raise CafedclError(
                f"table:{name}: there is no such result; {nearest(one, list(NAMES))}"
            )
        whole = results / f"{one}.json"
        for path in [whole] if whole.exists() else sorted(results.glob(f"{one}*.json")):
            try:
                result = json.loads(path.read_text(encoding="utf-8"))
                found.append(result)
                if kind in KINDS:
                    text += KINDS[kind](result)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CafedclError(
                    f"{path}: not a result of `cafedcl reproduce`: {error!r}"
                ) from None
    if kind in ACROSS and found:
        text += ACROSS[kind](found)
    return "\n" + (text or EMPTY)


def filled(page: str, results: Path) -> str:
    """Return the page with its tables filled from the result files."""
    marks = MARK.findall(page)
    if any(("/table" in mark) != bool(at % 2) for at, mark in enumerate(marks)) or len(marks) % 2:
        raise CafedclError("every <!-- table:… --> needs its <!-- /table -->")
    return BLOCK.sub(lambda found: found[1] + block(found[2], results) + found[3], page)


def main(words: Sequence[str] | None = None) -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit status 1 if a page is not up to date",
    )
    parser.add_argument("--page", type=Path, action="append", help="a page instead of all pages")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="the folder with the result files"
    )
    arguments = parser.parse_args(words)
    stale = []
    for page in arguments.page or PAGES:
        try:
            now = page.read_text(encoding="utf-8")
            wanted = filled(now, arguments.results)
        except OSError as error:
            sys.exit(f"error: {page}: cannot be read: {error.strerror}")
        except CafedclError as error:
            sys.exit(f"error: {page}: {error}")
        if now != wanted and arguments.check:
            stale.append(str(page))
        elif now != wanted:
            page.write_text(wanted, encoding="utf-8")
    if stale:
        sys.exit(f"{', '.join(stale)}: not up to date; run python experiments/reproduction.py")


if __name__ == "__main__":
    main()
