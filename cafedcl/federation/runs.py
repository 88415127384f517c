"""Runs: started, resumed, and loaded from their folder."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from cafedcl.config.sections import Config, assign, name_and_value
from cafedcl.core.arrays import Array
from cafedcl.core.commands import cafedcl_command, retrain_command
from cafedcl.core.environment import package_version
from cafedcl.core.errors import UNRESUMABLE, CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.core.tensors import MODEL, Tensors, moved, under, unpack_checked
from cafedcl.data.grey_values import WHOLE_16_BITS, Window
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.checkpoint import NOTHING_ASKED, Asked, Checkpoint, memories_of
from cafedcl.federation.contact_sheets import ContactSheets
from cafedcl.federation.final_scores import check_calibrations
from cafedcl.federation.metrics_file import MetricsLine, MetricsRead
from cafedcl.federation.recorder import Recorder
from cafedcl.federation.result import Run
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import CONFIG, DATA, ENCODER_FOLDER, RunFolder
from cafedcl.federation.sparse_writing import whole_tables
from cafedcl.models.initial_weights import weights_digest
from cafedcl.models.pretrained import PretrainedEncoder
from cafedcl.task.resolve import resolve

FederationFactory = Callable[[Config, Sequence[Callback], RunFolder | None], Federation]
"""Makes the federation of a config; for a resumed run, it also receives the run folder."""
UNIMPORTANT = {"transformers_version", "_name_or_path"}
"""Entries of an encoder's config that do not decide what it computes."""


def local_federation(
    config: Config, callbacks: Sequence[Callback], _: RunFolder | None
) -> Federation:
    """Make a federation whose clients are on this machine."""
    return Federation(config, callbacks)


def start(
    config: Config,
    out: str | Path | None,
    callbacks: Sequence[Callback],
    command: Sequence[str] = (),
    make_federation: FederationFactory = local_federation,
) -> Run:
    """Run a resolved config from its first round."""
    if out is not None:
        # Before data are loaded and steps are compiled, which can take minutes.
        RunFolder(out).refuse_occupied()
    with make_federation(config, callbacks, None) as federation:
        if out is None:
            federation.run()
            return _result(federation, None)
        folder = RunFolder.create(out)
        try:
            recorder = Recorder(folder)
            recorder.begin(federation, list(command))
            return _run_to_end(federation, recorder)
        finally:
            folder.unlock()


def resume(
    path: str | Path,
    callbacks: Sequence[Callback] = (),
    warn: Callable[[str], None] = print,
    make_federation: FederationFactory = local_federation,
) -> Run:
    """Resume a run from its newest intact checkpoint, as if it had never stopped."""
    folder = RunFolder.open(path)
    with folder.held():
        config = folder.config()
        metrics = folder.metrics_file.read()
        saved = folder.newest(warn, lambda checkpoint: _covered(checkpoint, metrics))
        if saved is None:
            _check_restart(folder, metrics, config, warn)
        else:
            saved.check_config(config, folder.path)
            saved.check_version(config, folder.path)
            if metrics.problem:
                lost = saved.round < config.federation.rounds
                again = f"the rounds after round {saved.round} are trained again"
                warn(f"{metrics.problem}; {again if lost else 'what follows is removed'}")
        folder.refuse_unwritable()
        about = folder.described(warn)
        made_with = about.get("packages", {}).get("torch")
        torch_version = package_version("torch")
        if made_with not in (None, torch_version):
            warn(
                f"{path}: made with torch {made_with}, this is {torch_version}: "
                "later rounds may differ in the last bits"
            )
        recorder = Recorder(folder)
        with make_federation(config, callbacks, folder) as federation:
            if saved is None:
                recorder.begin(federation, about.get("command", []))
            else:
                _restore(federation, folder, metrics, saved)
                recorder.go_on(federation, about)
            federation.privacy.resume(federation.round, _released(metrics, saved))
            return _run_to_end(federation, recorder)


def change_config(folder: RunFolder, settings: Sequence[str]) -> None:
    """Write settings such as ``federation.rounds=200`` into the config of a run.

    `Checkpoint.check_config` says what may change.
    """
    with folder.held():
        tables = folder.tables()
        for setting in settings:
            assign(tables, setting)
        config = resolve(tables)
        check_unchanged(folder, config, dict(map(name_and_value, settings)))
        Recorder(folder).write_config(config)


def check_unchanged(folder: RunFolder, config: Config, asked: Asked = NOTHING_ASKED) -> None:
    """Raise CafedclError if a config has options that may not differ from those of the run."""
    saved = folder.newest(lambda _: None) or _begun(folder)
    saved.check_config(config, folder.path, asked)


@contextmanager
def unchanged_if_refused(folder: RunFolder) -> Iterator[None]:
    """Restore a run's config if a block that changes it to resume the run is refused."""
    before = (folder.path / CONFIG).read_bytes()
    done = len(folder.metrics_file.read().lines)
    try:
        yield
    except CafedclError:
        if len(folder.metrics_file.read().lines) == done:
            with explained(folder.path):
                write_atomically(folder.path / CONFIG, before)
        raise


def _covered(checkpoint: Checkpoint, metrics: MetricsRead) -> bool:
    """Return whether the metrics have all rounds of a checkpoint, or lack only what it has."""
    rounds = len(metrics.lines)
    has_last = checkpoint.record is not None
    return checkpoint.round <= rounds or (has_last and checkpoint.round == rounds + 1)


def _begun(folder: RunFolder) -> Checkpoint:
    """Return what stands in for a checkpoint before there is one: the config of the start."""
    # A run without any round starts again, and writes its data file again if that is missing.
    began = folder.metrics_file.read().lines or (folder.path / DATA).is_file()
    about = folder.data()[1] if began else {}
    return Checkpoint(0, {}, about.get("config", {}))


def _check_restart(
    folder: RunFolder, metrics: MetricsRead, config: Config, warn: Callable[[str], None]
) -> None:
    """Raise CafedclError unless a run without a checkpoint may begin again with its first round.

    It may if no checkpoint was due so far, or if the existing ones are damaged: its rounds are
    trained again, bit for bit, provided that its config has not changed.
    """
    done = len(metrics.lines)
    files = [file for file in folder.checkpoints() if int(file.stem)]
    first_due = min(config.store.checkpoint_every, config.federation.rounds)
    all_damaged = bool(files) and folder.newest(lambda _: None) is None
    if not metrics.problem and (all_damaged or (not files and done < first_due)):
        if done:
            _begun(folder).check_config(config, folder.path)
            why = "no checkpoint is whole" if files else "it has no checkpoint"
            what = "round is" if done == 1 else f"{done} rounds are"
            warn(f"{folder.path}: {why}; its {what} trained again")
        return
    what = metrics.problem or f"{folder.path / 'checkpoints'}: there is no checkpoint any more"
    if files and not metrics.problem:
        what = f"{folder.metrics_file.path}: only {done} rounds, fewer than any checkpoint has"
    raise CafedclError(
        f"{what}; the run {UNRESUMABLE}, and nothing in it was changed. Restore the file from "
        f"a backup, or train again in a new folder: {retrain_command(folder.path)}"
    )


def _restore(
    federation: Federation, folder: RunFolder, metrics: MetricsRead, saved: Checkpoint
) -> None:
    """Return to a checkpoint, whose data must match those of the federation."""
    _check_data(federation, folder)
    _check_architecture(federation, folder)
    prefix = "state/" + MODEL
    # In runs of earlier versions, frozen weights are part of every checkpoint.
    _check_frozen(federation, folder, folder.frozen() or under(prefix, saved.tensors))
    unsent = {prefix + name for name in federation.task.frozen_weights()}
    tensors = {name: value for name, value in saved.tensors.items() if name not in unsent}
    try:
        federation.restore(tensors, {"round": saved.round})
    except ValueError as error:
        raise CafedclError(
            f"{folder.checkpoint_file(saved.round)}: not a checkpoint of this run: {error}"
        ) from None
    lines = metrics.lines[: saved.round]
    if saved.record is not None and len(lines) < saved.round:
        lines.append(saved.record)
    if len(metrics.lines) <= saved.round:
        # Readable rounds are kept, damaged lines are dropped, and the checkpoint's is added.
        with explained(folder.path):
            folder.metrics_file.write(lines)
    federation.history = [Record(**line) for line in lines]


def _released(metrics: MetricsRead, saved: Checkpoint | None) -> int:
    """Return the private steps that a run has recorded, even those after its last checkpoint."""
    lines = [*metrics.lines]
    if saved is not None and saved.record is not None:
        lines.append(saved.record)
    return max((int(line.get("privacy", {}).get("releases", 0)) for line in lines), default=0)


def _check_data(federation: Federation, folder: RunFolder) -> None:
    """Raise CafedclError if the data or the first weights are not those that the run started
    with.
    """
    arrays, header = folder.data()
    data = federation.task.clients.data
    same = (
        list(data.names) == header["names"]
        and list(data.shape) == header["shape"]
        and np.array_equal(federation.counts.numpy(), arrays["counts"])
        and np.allclose(data.mean.cpu().numpy(), arrays["mean"], atol=1e-5)
        and np.allclose(data.std.cpu().numpy(), arrays["std"], atol=1e-5)
    )
    if not same:
        raise CafedclError(
            f"{folder.path}: the data set '{federation.config.data.name}' is not the one that the "
            "run started with (classes, counts or pixels differ); restore it, or start a new run"
        )
    weights = federation.config.model.weights
    # Runs of earlier versions do not have the checksum.
    if header.get("weights") and header["weights"] != weights_digest(weights):
        raise CafedclError(
            f"model.weights = {weights}: not the file that the run in {folder.path} started with; "
            "restore it, or start a new run"
        )


def _check_architecture(federation: Federation, folder: RunFolder) -> None:
    """Raise CafedclError if a pretrained encoder is built differently than at the run's start."""
    task = federation.task
    encoder = task.frozen_encoder or task.network.encoder
    if not isinstance(encoder, PretrainedEncoder):
        return
    for name, content in encoder.description().items():
        file = folder.path / ENCODER_FOLDER / name
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise CafedclError(f"{file}: damaged: {error}; restore it from a backup") from None
        here = json.loads(content)
        for key in {*stored, *here} - UNIMPORTANT:
            if stored.get(key) != here.get(key):
                raise CafedclError(
                    f"{folder.path}: the encoder '{federation.config.model.name}' is not the one "
                    f"that the run started with ('{key}' in {name} differs); restore it, or start "
                    "a new run"
                )


def _check_frozen(federation: Federation, folder: RunFolder, started_with: Tensors) -> None:
    """Raise CafedclError if the frozen weights are not those that the run started with."""
    for name, value in federation.task.frozen_weights().items():
        if name not in started_with or not torch.equal(started_with[name], value.cpu()):
            raise CafedclError(
                f"{folder.path}: the frozen weights of the encoder "
                f"'{federation.config.model.name}' are not those that the run started with "
                f"('{name}' differs); restore them, or start a new run"
            )


def _run_to_end(federation: Federation, recorder: Recorder) -> Run:
    """Run to the end; on an interrupt or error, save what is done and re-raise it."""
    federation.callbacks[:0] = [recorder, ContactSheets(recorder.path / "samples")]
    try:
        federation.run()
    except KeyboardInterrupt:
        recorder.save(federation)
        raise
    except Exception:
        # The rounds before the error are kept. If saving them fails, the first error is reported.
        with suppress(Exception):
            if recorder.has_all_rounds(federation):
                recorder.save(federation)
        raise
    if not federation.finished:
        # A callback has stopped the run early.
        recorder.save(federation)
    return _result(federation, recorder.path)


def _result(federation: Federation, path: Path | None) -> Run:
    data = federation.task.clients.data
    return Run(
        config=federation.config,
        records=[record.line() for record in federation.history],
        state=moved(federation.state, "cpu"),
        memories={client: moved(memory, "cpu") for client, memory in federation.memories.items()},
        counts=federation.counts,
        names=data.names,
        shape=data.shape,
        mean=data.mean.cpu(),
        std=data.std.cpu(),
        path=path,
        client_names=federation.client_names,
        window=Window.of(data.window, federation.config.data.window),
        tables=federation.tables,
        frozen=moved(federation.task.frozen_weights(), "cpu"),
    )


def load(path: str | Path, warn: Callable[[str], None] = print) -> Run:
    """Load a run folder, finished or not, without its data set."""
    folder = RunFolder.open(path)
    saved = folder.newest(warn)
    if saved is None:
        if not folder.checkpoints():
            raise CafedclError(f"{path}: there is no checkpoint yet")
        raise CafedclError(
            f"{path}: no checkpoint is whole; "
            f"`{cafedcl_command('resume', path)}` trains its rounds again"
        )
    config = folder.config()
    saved.check_config(config, folder.path)
    lines = _lines_of(folder, saved, warn)
    if saved.round < len(lines):
        warn(
            f"{path}: this is the model after round {saved.round} of {len(lines)} that are done; "
            "the last ones have no whole checkpoint; if the run is not going on, "
            f"`{cafedcl_command('resume', path)}` makes it"
        )
    known, about = folder.data()
    channels, height, width = about["shape"]
    return Run(
        config=config,
        records=lines[: saved.round],
        state=under("state/", saved.tensors),
        memories=memories_of(saved.tensors),
        counts=torch.from_numpy(known["counts"]),
        names=tuple(about["names"]),
        shape=(channels, height, width),
        mean=torch.from_numpy(known["mean"]),
        std=torch.from_numpy(known["std"]),
        path=folder.path,
        client_names=tuple(about.get("clients", ())),
        window=Window.of(about.get("window", WHOLE_16_BITS.limits), config.data.window),
        tables=_last_tables(folder, lines[: saved.round], known["counts"], warn),
        frozen=folder.frozen(),
    )


def _lines_of(
    folder: RunFolder, saved: Checkpoint, warn: Callable[[str], None]
) -> list[MetricsLine]:
    """Return the metrics of a model's rounds, always with those of its last one.

    Facts about the model, such as its ε, are read from them. Damaged lines are left out.
    """
    read = folder.metrics_file.read()
    if len(read.lines) >= saved.round:
        return read.lines
    problem = read.problem or (
        f"{folder.metrics_file.path}: {len(read.lines)} of {saved.round} rounds are there"
    )
    if saved.record is None:
        raise CafedclError(f"{problem}; restore the file from a backup")
    if len(read.lines) < saved.round - 1:
        warn(f"{problem}; the metrics from there to round {saved.round} are missing")
    return [*read.lines[: saved.round - 1], saved.record]


def _last_tables(
    folder: RunFolder, lines: Sequence[MetricsLine], counts: Array, warn: Callable[[str], None]
) -> Tensors:
    """Return the tables of the last round of a model; none if that round was not evaluated."""
    if not lines or (lines[-1]["server"] is None and lines[-1]["own"] is None):
        return {}
    file = folder.evaluation_file(lines[-1]["round"])
    try:
        stored, header = unpack_checked(file.read_bytes())
        tables = whole_tables(stored, counts)
        check_calibrations(tables, header, lines[-1])
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"damaged: {error}"
        warn(f"{file}: {why}; probabilities are not calibrated, and nothing is called unusual")
        return {}
    return tables
