"""`cafedcl.compare`: many methods, splits and seeds from Python."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cafedcl.compare.plan import Comparison
from cafedcl.compare.run import Means, run_comparison
from cafedcl.config.options import to_toml
from cafedcl.report.printed import as_csv
from cafedcl.report.runs import read_runs
from cafedcl.report.table import score_table

if TYPE_CHECKING:
    import pandas as pd


def compare(
    methods: Sequence[str],
    out: str | Path,
    *,
    data: str | Sequence[str] = "digits",
    splits: str | Sequence[str] = (),
    seeds: int = 1,
    first_seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    devices: Sequence[str] = (),
    clients: int | None = None,
    rounds: int | None = None,
    quiet: bool = True,
) -> "pd.DataFrame":
    """Train several methods on several data sets and splits with several seeds.

    Returns a table with a row per method and setting: scores in %, as means and standard
    deviations over seeds, ranks, and the recall of every class. Each run has a folder of its own
    in ``out``; runs that are finished are not repeated. With ``quiet=False`` progress is printed.
    """
    import pandas as pd

    plan = Comparison.make(
        methods=list(methods),
        data=[data] if isinstance(data, str) else list(data),
        splits=[splits] if isinstance(splits, str) else list(splits),
        seeds=seeds,
        first_seed=first_seed,
        tables={},
        flags={"clients": clients, "rounds": rounds},
        settings=[f"{name}={to_toml(value)}" for name, value in (settings or {}).items()],
    )
    run_comparison(plan, Path(out), Means(jobs, devices, None, quiet))
    return pd.read_csv(io.StringIO(as_csv(score_table(read_runs([out])))))
