"""Writes a run down as it goes: what is about to run, every round, and a checkpoint when one is
due.
"""

import json
import os

from cafedcl.config.format import FORMAT
from cafedcl.core.environment import environment
from cafedcl.core.files import explained, write_atomically
from cafedcl.core.tensors import pack
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder, digest
from cafedcl.federation.watcher import Record, Watcher

CHECKPOINTS_KEPT = 2


class Recorder(Watcher):
    """Keeps the run folder of a federation up to date."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path

    def begin(self, federation: Federation, command: list[str]) -> None:
        """Write down what is about to run. The config comes last: a folder that has one holds a
        run.
        """
        data = federation.task.clients.data
        tensors = {"counts": federation.counts, "mean": data.mean, "std": data.std}
        header = {"names": list(data.names), "shape": list(data.shape)}
        about = environment(command, str(federation.task.device))
        about |= {"enrolment_bytes": federation.enrolment, **federation.about}
        config = f"format = {FORMAT}\n\n{federation.config.to_toml()}"
        with explained(self.path):
            write_atomically(self.path / "data.safetensors", pack(tensors, header))
            write_atomically(self.path / "environment.json", json.dumps(about, indent=1).encode())
            write_atomically(self.path / "config.toml", config.encode())

    def round_done(self, federation: Federation, record: Record) -> None:
        """Append the round's line, its tables, and a checkpoint when one is due."""
        with explained(self.path):
            if record.tables:
                file = self.path / "evaluations" / f"{record.round:06d}.safetensors"
                write_atomically(file, pack(record.tables, {"round": record.round}))
            self._append(record)
            if federation.is_due(record.round, federation.config.store.checkpoint_every):
                self.checkpoint(federation)

    def _append(self, record: Record) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record.line()) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def checkpoint(self, federation: Federation) -> None:
        """Save the federation's state; the one before is kept, older ones go once the new one is
        complete.

        A round whose line was cut short by an interrupt gets it now: a checkpoint never knows more
        than the metrics.
        """
        for record in federation.history[len(self.folder.metrics()) :]:
            self._append(record)
        tensors, header = federation.snapshot()
        file = self.path / "checkpoints" / f"{federation.round:06d}.safetensors"
        with explained(self.path):
            write_atomically(file, pack(tensors, {**header, "digest": digest(tensors)}))
            for old in self.folder.checkpoints()[CHECKPOINTS_KEPT:]:
                old.unlink()
