"""`cafedcl.compare` and `cafedcl.sweep`: many runs from Python."""

import io
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cafedcl.api import as_words, check_name
from cafedcl.compare.jobs import RunOutcome
from cafedcl.compare.plan import Comparison, words_of
from cafedcl.compare.run import Means, SweepResult, failed_runs, run_comparison, run_sweep
from cafedcl.compare.sweep import Sweep, sweep_settings
from cafedcl.config.flags import Flags
from cafedcl.core.errors import CafedclError
from cafedcl.report.printed import as_csv
from cafedcl.report.runs import read_runs
from cafedcl.report.table import TABLE_MEASURES, ScoreTable, score_table

if TYPE_CHECKING:
    import pandas as pd

ARGUMENTS = {"range": "ranges", "choice": "choices", "set": "settings"}
"""Arguments whose names differ from their flags."""
NAMES = ("data", "split", "method", "worst_class_name")
"""The columns of a table that hold names, whatever they look like."""


@dataclass(frozen=True)
class ComparisonResult:
    """The scores of all methods in all settings."""

    scores: ScoreTable

    @property
    def table(self) -> "pd.DataFrame":
        """A row per method and setting: scores in %, as means and standard deviations over seeds,
        ranks, and the recall of every class.
        """
        import pandas as pd

        # A class called 01 or NA is neither a number nor missing.
        names = dict.fromkeys(NAMES, str)
        return pd.read_csv(
            io.StringIO(as_csv(self.scores)), converters=names, keep_default_na=False, na_values=""
        )

    @property
    def tests(self) -> "pd.DataFrame":
        """A row per setting: its best method against the best other one, seed by seed.

        ``difference`` is in percentage points, ``p_ttest`` and ``p_wilcoxon`` are two-sided
        p-values, and ``missing`` says why there are none.
        """
        import pandas as pd

        rows = []
        for column in self.scores.columns:
            if column.comparison is not None:
                setting = column.group.setting
                place = {
                    "data": setting.data,
                    "split": setting.split,
                    "clients": setting.clients,
                    "options": setting.others,
                }
                tested = asdict(column.comparison)
                del tested["of"]
                tested["p_ttest"] = tested.pop("t")
                tested["p_wilcoxon"] = tested.pop("wilcoxon")
                rows.append({**place, "score": column.ranked_by, **tested})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        tested = [it.comparison.text for it in self.scores.columns if it.comparison is not None]
        return f"<ComparisonResult: {'; '.join(tested) or 'one method'}; see .table and .tests>"

    def _repr_html_(self) -> str:
        """Return the main scores and the tests, for notebooks."""
        shown = ["data", "split", "clients", "method", "seeds"]
        shown += [f"{measure}_mean" for measure in TABLE_MEASURES]
        page = self.table[shown].round(2).to_html(index=False)
        for column in self.scores.columns:
            if column.comparison is not None:
                page += f"<p>{escape(column.comparison.text)}</p>"
        return page


def compare(
    methods: str | Sequence[str],
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path] = "digits",
    splits: str | Sequence[str] = (),
    seeds: int = 1,
    first_seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    devices: str | Sequence[str] = (),
    model: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    quiet: bool = True,
) -> ComparisonResult:
    """Train several methods on several data sets and splits with several seeds.

    ``table`` of the result has the scores, and ``tests`` shows which differences are significant.
    Each run has its own folder in ``out``; finished runs are not repeated. With ``quiet=False``
    progress is printed.
    """
    named = words_of([methods] if isinstance(methods, str) else methods)
    if not named:
        raise CafedclError("methods: name at least one, such as ['fedavg', 'cafedcl']")
    with in_python_words():
        plan = Comparison.make(
            methods=named,
            data=[str(each) for each in ([data] if isinstance(data, str | Path) else data)],
            splits=[splits] if isinstance(splits, str) else list(splits),
            seeds=whole_number("seeds", seeds),
            first_seed=whole_number("first_seed", first_seed),
            tables={},
            flags={"model": model, "clients": clients, "rounds": rounds},
            settings=as_words(settings),
        )
    outcomes = run_comparison(plan, Path(out), means(jobs, devices, quiet))
    check(outcomes)
    return ComparisonResult(score_table(read_runs([out])))


def sweep(
    method: str,
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    tune: int | None = None,
    ranges: Mapping[str, str | tuple[Any, ...]] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
    score: str | None = None,
    on: str | None = None,
    hold_out: float | None = None,
    prune: bool = False,
    data: str | Path = "digits",
    split: str | None = None,
    seeds: int = 1,
    first_seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    devices: str | Sequence[str] = (),
    model: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    quiet: bool = True,
) -> SweepResult:
    """Train a method with several values of its options: a grid, or a search for the best values.

    A grid is ``grid={"train.lr": [0.03, 0.1]}``. A search is ``tune=40`` trials with
    ``ranges={"train.lr": (0.01, 0.3, "log")}`` or ``choices={"method.geo": ["batch", "cross"]}``.

    ``on="validation"`` scores on held-out training images, the default for a search, and
    ``on="test"`` on the test set, the default for a grid. ``best`` of the result holds settings for
    `cafedcl.run`. Finished runs are not repeated.
    """
    flags: Flags = {
        "method": method,
        "data": str(data),
        "split": split,
        "model": model,
        "clients": clients,
        "rounds": rounds,
    }
    if not grid and not tune:
        raise CafedclError(
            "sweep: give grid={'train.lr': [0.03, 0.1]}, or tune=20 with "
            "ranges={'train.lr': (0.01, 0.3, 'log')}"
        )
    if tune is not None:
        tune = whole_number("tune", tune)
        if tune < 1:
            raise CafedclError(f"tune = {tune}: it must be at least 1")
    with in_python_words():
        plan = Sweep.make(
            sweep_settings({}, flags, as_words(settings)),
            tune=tune,
            grid=values_by_name("grid", grid),
            ranges=ranges_by_name(ranges),
            choices=values_by_name("choices", choices),
            score=score,
            on=on,
            hold_out=hold_out,
            prune=prune,
            seeds=whole_number("seeds", seeds),
            first_seed=whole_number("first_seed", first_seed),
        )
    result = run_sweep(plan, Path(out), tune, means(jobs, devices, quiet))
    if plan.grid:
        check(result.outcomes)
    return result


def means(jobs: int | None, devices: str | Sequence[str], quiet: bool) -> Means:
    """Return how the runs are executed."""
    number = None if jobs is None else whole_number("jobs", jobs)
    return Means(number, [devices] if isinstance(devices, str) else devices, None, quiet)


def whole_number(name: str, value: Any) -> int:
    """Return an argument that must be a whole number."""
    try:
        # NumPy's whole numbers as well.
        return operator.index(value)
    except TypeError:
        raise CafedclError(f"{name} = {value!r}: a whole number is expected, such as 3") from None


def values_by_name(argument: str, given: Mapping[str, Sequence[Any]] | None) -> dict[str, Any]:
    """Return the values of every option that a grid or a search varies."""
    if given is not None and not isinstance(given, Mapping):
        raise CafedclError(f"{argument} = {given!r}: expected {{'train.lr': [0.03, 0.1]}}")
    found = {}
    for name, values in (given or {}).items():
        check_name(argument, name)
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
            raise CafedclError(f"{argument}: {name}: a list of values is expected, not {values!r}")
        # Neither a config nor Optuna's database can hold NumPy's numbers.
        found[name] = [value.item() if isinstance(value, np.generic) else value for value in values]
    return found


def ranges_by_name(given: Mapping[str, str | tuple[Any, ...]] | None) -> dict[str, str]:
    """Return the ranges of a search as the command line writes them, ``low..high:log``."""
    if given is not None and not isinstance(given, Mapping):
        raise CafedclError(f"ranges = {given!r}: expected {{'train.lr': (0.01, 0.3, 'log')}}")
    found = {}
    for name, bounds in (given or {}).items():
        check_name("ranges", name)
        if isinstance(bounds, str):
            found[name] = bounds
        elif isinstance(bounds, Sequence) and len(bounds) in (2, 3):
            low, high, *scale = bounds
            found[name] = ":".join([f"{low}..{high}", *scale])
        else:
            raise CafedclError(
                f"ranges: {name}: (low, high) or (low, high, 'log') is expected, not {bounds!r}"
            )
    return found


@contextmanager
def in_python_words() -> Iterator[None]:
    """Make errors about a plan name Python arguments instead of flags."""
    try:
        yield
    except CafedclError as error:
        text = re.sub(
            r"--([a-z][a-z-]*)",
            lambda flag: ARGUMENTS.get(flag[1], flag[1].replace("-", "_")),
            str(error),
        )
        raise CafedclError(text) from None


def check(outcomes: Sequence[RunOutcome]) -> None:
    """Raise an error if a run has failed."""
    failed = failed_runs(outcomes)
    if failed:
        first = failed[0]
        raise CafedclError(
            f"{len(failed)} of {len(outcomes)} runs failed; the first is {first.job.folder}: "
            f"{first.error}  (log: {first.job.log}). The others are kept: call it again to repeat "
            "those that failed"
        )
