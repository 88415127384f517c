"""Logs rounds to TensorBoard or MLflow as they happen, in addition to the run folder's metrics."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.imports import optional
from cafedcl.core.printable import printable
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation

LOGS = ("tensorboard", "mlflow")
MLFLOW_FILE = "mlflow.json"
"""Which MLflow run belongs to a run folder, so that a resumed run continues it."""


def scalars(record: Record) -> dict[str, float]:
    """Return a round's numbers by flat names, such as ``server.accuracy`` or ``loss.ce``."""
    line = record.line()
    found: dict[str, float] = {"lr": record.lr}
    for section in ("server", "own", "loss", "traffic", "seconds"):
        found |= {
            f"{section}.{key}": value
            for key, value in (line[section] or {}).items()
            if value is not None
        }
    found["seconds.round"] = sum(record.seconds.values())
    lists = ("participants", "dropped", "failed", "left_out")
    found |= {f"clients.{name}": len(line[name]) for name in lists}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def parameters(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return a config by flat names, as text."""
    return {
        f"{section}.{key}": value if isinstance(value, str) else json.dumps(value)
        for section, table in tables.items()
        for key, value in table.items()
    }


class TensorBoardLog(Callback):
    """Writes RUN/tensorboard, for `tensorboard --logdir`; a resumed run replaces its rounds."""

    def __init__(self, path: str | Path) -> None:
        optional("tensorboard", "tensorboard", "--log tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.open = SummaryWriter
        self.folder = Path(path) / "tensorboard"
        self.writer: Any = None

    def round_done(self, federation: Federation, record: Record) -> None:  # noqa: ARG002
        """Write the round's numbers."""
        if self.writer is None:
            self.writer = self.open(str(self.folder), purge_step=record.round)
        for name, value in scalars(record).items():
            self.writer.add_scalar(name.replace(".", "/"), value, record.round)
        self.writer.flush()

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()


class MlflowLog(Callback):
    """Writes to MLflow: at MLFLOW_TRACKING_URI or MLflow's default, in the experiment `cafedcl`.

    MLFLOW_EXPERIMENT_NAME names another experiment. An error of MLflow before the first round stops
    the run; after it, the run continues without MLflow.
    """

    def __init__(self, path: str | Path) -> None:
        self.mlflow = optional("mlflow", "mlflow", "--log mlflow")
        self.file = Path(path) / MLFLOW_FILE
        self.run_id = ""
        self.known = -1
        """The last round that MLflow already has."""
        self.lost = False
        try:
            self.client = self.mlflow.MlflowClient()
            self.experiment = self._experiment()
        except (self.mlflow.exceptions.MlflowException, ImportError, OSError) as error:
            said = str(error).splitlines()[0]
            raise CafedclError(
                f"--log mlflow: {said}; fix it, or set MLFLOW_TRACKING_URI"
            ) from None

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "cafedcl"
        there = self.client.get_experiment_by_name(name)
        return str(self.client.create_experiment(name) if there is None else there.experiment_id)

    def round_done(self, federation: Federation, record: Record) -> None:
        """Write the round's numbers, unless they were written before an interruption."""
        if self.lost:
            return
        try:
            if not self.run_id:
                self._begin(federation)
            if record.round > self.known:
                self._write({**scalars(record), "round": float(record.round)}, record.round)
        except (self.mlflow.exceptions.MlflowException, OSError, ValueError, KeyError) as error:
            self.lost = True
            said = str(error).splitlines()[0]
            after = f"the run continues without it from round {record.round + 1}"
            print(printable(f"warning: mlflow: {said}; {after}"), file=sys.stderr)

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metric = self.mlflow.entities.Metric
        self.client.log_batch(
            self.run_id, metrics=[metric(name, value, now, step) for name, value in numbers.items()]
        )

    def _begin(self, federation: Federation) -> None:
        if self.file.is_file():
            self.run_id = str(json.loads(self.file.read_text(encoding="utf-8"))["run_id"])
            self.known = int(self.client.get_run(self.run_id).data.metrics.get("round", -1))
            self.client.update_run(self.run_id, status="RUNNING")
            return
        self.run_id = str(
            self.client.create_run(self.experiment, run_name=self.file.parent.name).info.run_id
        )
        pairs = parameters(federation.config.to_plain())
        self.client.log_batch(
            self.run_id, params=[self.mlflow.entities.Param(*pair) for pair in pairs.items()]
        )
        self.file.write_text(json.dumps({"run_id": self.run_id}) + "\n", encoding="utf-8")

    def __enter__(self) -> "MlflowLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.run_id and not self.lost:
            status = "FINISHED"
            if kind is not None:
                interrupted = issubclass(kind, KeyboardInterrupt | SystemExit)
                status = "KILLED" if interrupted else "FAILED"
            self.client.set_terminated(self.run_id, status)


@contextmanager
def logging_to(names: Sequence[str], path: str | Path) -> Iterator[list[Callback]]:
    """Give the callbacks of ``--log``, and close them afterwards; ``path`` is the run folder."""
    for name in names:
        if name not in LOGS:
            raise CafedclError(f"--log {name}: there is no such log; {nearest(name, list(LOGS))}")
    makers: dict[str, Callable[[str | Path], AbstractContextManager[Callback]]] = {
        "tensorboard": TensorBoardLog,
        "mlflow": MlflowLog,
    }
    with ExitStack() as stack:
        yield [stack.enter_context(makers[name](path)) for name in dict.fromkeys(names)]
