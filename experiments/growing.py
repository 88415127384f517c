"""Result files that grow run by run: the same command continues an experiment that was ended."""

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=tuple[Any, ...])


class GrowingResult(Generic[K]):
    """A result file: what all runs share, and a row per run.

    ``key`` is a NamedTuple whose fields say which run a row is the result of.
    """

    executor: type[Executor] = ProcessPoolExecutor

    def __init__(self, file: Path, key: type[K], shared: dict[str, Any]) -> None:
        self.file = file
        self.key = key
        self.content: dict[str, Any] = {**shared, "runs": []}
        if file.exists():
            self.content = json.loads(file.read_text(encoding="utf-8"))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all runs so far."""
        return self.content["runs"]  # type: ignore[no-any-return]

    def key_of(self, row: dict[str, Any]) -> K:
        """Return which run a row is the result of."""
        fields: tuple[str, ...] = self.key._fields  # type: ignore[attr-defined]
        return self.key(*(row[name] for name in fields))

    def write(self) -> None:
        """Write the file, a line per run."""
        self.rows.sort(key=lambda row: [str(part) for part in self.key_of(row)])
        rows = ",\n".join(f"  {json.dumps(row)}" for row in self.rows)
        shared = {name: value for name, value in self.content.items() if name != "runs"}
        head = json.dumps(shared, indent=1)
        self.file.write_text(f'{head[:-2]},\n "runs": [\n{rows}\n ]\n}}\n', encoding="utf-8")

    def run_missing(
        self, wanted: Iterable[K], run_one: Callable[[K], dict[str, Any]], jobs: int
    ) -> None:
        """Run what the file does not have, ``jobs`` at a time.

        A run that fails does not end the others; its error is raised after them.
        """
        done = {self.key_of(row) for row in self.rows}
        missing = [key for key in wanted if key not in done]
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with self.executor(jobs) as pool:  # type: ignore[call-arg]
            waiting = [pool.submit(run_one, key) for key in missing]
            try:
                for number, future in enumerate(as_completed(waiting), 1):
                    if future.exception() is None:
                        self.rows.append(future.result())
                        self.write()
                    print(f"{number} of {len(missing)}", end="\r", flush=True)
            except KeyboardInterrupt:
                # Otherwise all runs that wait would still be made.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for future in waiting:
            future.result()


def cell(values: list[float]) -> str:
    """Return a mean with its standard error."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{mean(values):.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"
