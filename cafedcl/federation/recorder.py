"""Records a run in its folder: what is about to run, every round, and checkpoints when due."""

import json
from typing import Any

from cafedcl.config.format import FORMAT
from cafedcl.config.sections import Config
from cafedcl.core.environment import environment
from cafedcl.core.files import explained, write_atomically
from cafedcl.core.tensors import digest, pack, pack_with_digest
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.checkpoint import Checkpoint
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import CONFIG, DATA, ENCODER_FOLDER, FROZEN, RunFolder
from cafedcl.federation.sparse_writing import without_empty_rows
from cafedcl.models.initial_weights import weights_digest
from cafedcl.models.pretrained import PretrainedEncoder
from cafedcl.task.task import Task

CHECKPOINTS_KEPT = 2


class Recorder(Callback):
    """Keeps the run folder of a federation up to date."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path
        self._in_step = False
        """Whether the folder holds nothing from after the federation's round."""

    def begin(self, federation: Federation, command: list[str]) -> None:
        """Record what is about to run. The config comes last: a folder that has one holds a run."""
        data = federation.task.clients.data
        tensors = {"counts": federation.counts, "mean": data.mean, "std": data.std}
        if federation.task.tested is not None:
            tensors["tested"] = federation.task.tested
        config = {"format": FORMAT, **federation.config.to_plain()}
        header = {
            "names": list(data.names),
            "clients": list(federation.client_names),
            "shape": list(data.shape),
            "window": list(data.window),
            "weights": weights_digest(federation.config.model.weights),
            "frozen": bool(federation.task.frozen_weights()),
            "config": config,
        }
        about = environment(command, str(federation.task.device))
        about |= {"enrolment_bytes": federation.enrolment_bytes, **federation.about}
        with explained(self.path):
            write_atomically(self.path / DATA, pack_with_digest(tensors, header))
            self._write_encoder(federation.task)
        self._write_frozen(federation)
        self._write_environment({**about, "notices": federation.notices})
        self.write_config(federation.config)

    def _write_encoder(self, task: Task) -> None:
        """Write what a pretrained encoder is built from, so that the run can be used elsewhere."""
        encoder = task.frozen_encoder or task.network.encoder
        if not isinstance(encoder, PretrainedEncoder):
            return
        for name, content in encoder.description().items():
            (self.path / ENCODER_FOLDER).mkdir(exist_ok=True)
            write_atomically(self.path / ENCODER_FOLDER / name, content.encode())

    def _write_frozen(self, federation: Federation) -> None:
        """Write the frozen weights once: checkpoints do not have them."""
        frozen = federation.task.frozen_weights()
        if frozen:
            with explained(self.path):
                content = pack(frozen, {"digest": digest(frozen)})
                write_atomically(self.path / FROZEN, content)

    def go_on(self, federation: Federation, about: dict[str, Any]) -> None:
        """Record what has changed about where a resumed run is executed.

        ``about`` is what is known so far: empty if its file is missing or damaged.
        """
        if not (self.path / FROZEN).is_file():
            # In runs of earlier versions, they are part of every checkpoint.
            self._write_frozen(federation)
        known = about.get("notices", [])
        new = [message for message in federation.notices if message not in known]
        if about and new:
            self._write_environment({**about, "notices": [*known, *new]})

    def _write_environment(self, about: dict[str, Any]) -> None:
        with explained(self.path):
            write_atomically(self.path / "environment.json", json.dumps(about, indent=1).encode())

    def write_config(self, config: Config) -> None:
        """Write the run's config."""
        content = f"format = {FORMAT}\n\n{config.to_toml()}"
        with explained(self.path):
            write_atomically(self.path / CONFIG, content.encode())

    def round_done(self, federation: Federation, record: Record) -> None:
        """Write the round's tables, a checkpoint when one is due, and the round's line.

        The line comes last. So every round in the metrics whose checkpoint was due had one, and a
        checkpoint is at most one round ahead of the metrics and holds that round's line itself.
        """
        if not self._in_step:
            # Only now does a resumed run remove the rounds that it trains again: if it fails before
            # its first round is done, nothing is lost.
            self.folder.rewind(record.round)
            self._in_step = True
        with explained(self.path):
            if record.tables:
                evaluator = federation.evaluator
                tables = without_empty_rows(
                    record.tables,
                    len(federation.counts),
                    follows=not evaluator.sizes and not evaluator.apart,
                    # The last round's file has the results of all clients.
                    only=None if federation.finished else record.round,
                )
                packed = pack_with_digest(tables, {"round": record.round})
                write_atomically(self.folder.evaluation_file(record.round), packed)
            if federation.is_due(record.round, federation.config.store.checkpoint_every):
                self._write_checkpoint(federation)
            self.folder.metrics_file.append(record.line())

    def has_all_rounds(self, federation: Federation) -> bool:
        """Return whether the last round is written; on a full disk, for example, it is not."""
        return len(self.folder.metrics_file.read().lines) == federation.round

    def save(self, federation: Federation) -> None:
        """Write a checkpoint between two rounds, and the last line if an interrupt prevented it."""
        with explained(self.path):
            self._write_checkpoint(federation)
            written = len(self.folder.metrics_file.read().lines)
            for record in federation.history[written:]:
                self.folder.metrics_file.append(record.line())

    def _write_checkpoint(self, federation: Federation) -> None:
        """Save the federation's state; the one before is kept, older ones go once the new one is
        complete.
        """
        lines = [record.line() for record in federation.history]
        tensors, _ = federation.snapshot()
        tensors = without_empty_rows(tensors, len(federation.counts))
        last = lines[-1] if lines else None
        checkpoint = Checkpoint(federation.round, tensors, federation.config.to_plain(), last)
        checkpoint.write(self.folder.checkpoint_file(federation.round))
        for old in self.folder.checkpoints()[CHECKPOINTS_KEPT:]:
            old.unlink()
