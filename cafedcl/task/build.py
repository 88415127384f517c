"""From a config to what runs: data, shards, method, network."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cafedcl.augment import find_augmenter
from cafedcl.augment.transforms import make_transforms
from cafedcl.config.options import check_together
from cafedcl.config.sections import SITES, Config, EngineOptions
from cafedcl.core.contract import Census, Shape
from cafedcl.core.environment import is_arm
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import explained_failure
from cafedcl.core.paths import absolute, data_folder
from cafedcl.core.rng import torch_stream
from cafedcl.core.steps import step
from cafedcl.core.tensors import MODEL, Tensors, moved, prefixed
from cafedcl.data import Dataset, is_own, load_dataset
from cafedcl.data.shards import Shards, merge_clients, stratified_rows
from cafedcl.data.split_tables import check_labels, is_table
from cafedcl.data.splits import SplitWords, split
from cafedcl.device.choose import choose_device
from cafedcl.methods import checked, find_method
from cafedcl.methods.base import Method
from cafedcl.models import Network, auto_model, feature_dim, make_encoder, place_of_model
from cafedcl.models.base import GivenFeatures
from cafedcl.models.pretrained import PretrainedEncoder
from cafedcl.task.checks import (
    check_attack,
    check_crop,
    check_levels,
    check_personal,
    check_rates,
    check_replies,
    check_schedule,
    check_scores,
    check_stored_models,
    check_trainable,
)
from cafedcl.task.frozen_encoder import behind_encoder, runs_once
from cafedcl.task.liars import with_flipped_labels
from cafedcl.task.local_schedule import LocalSchedule
from cafedcl.task.private_steps import PrivateSteps
from cafedcl.task.release import Release
from cafedcl.task.task import ClientData, TailAugmentation, Task

PFLLIB_TEST_SHARE = 0.25
OWNED = {
    "natural": "no clients of its own; put images into folders CLIENT/CLASS, or name the column of "
    "the clients with data.client",
    "source": "no sources that images come from",
}
"""The splits whose clients come from the data, and what data without them lack."""


@dataclass(frozen=True)
class Setup:
    """What a config resolves to on this machine."""

    config: Config
    task: Task
    state: Tensors
    """The server's state before round 0, besides the model."""
    counts: Tensor
    """Training images per client and class, before any pooling, by their true labels."""
    test_counts: tuple[int, ...]
    """Under `pfllib`, how many test images each client has."""
    client_names: tuple[str, ...] = ()
    """The names of the clients in ``counts``; empty if they have numbers only."""

    def start(self) -> Tensors:
        """Return the server's whole state before round 0, each part where it is worked on."""
        return {**prefixed(MODEL, self.task.shared()), **moved(self.state, self.task.server_device)}


def load_data(config: Config) -> Dataset:
    """Load the data set a config asks for; under `pfllib`, training and test images are merged."""
    if config.at_sites:
        raise CafedclError(
            "data.name = sites: that is for a deployment on Flower (see `cafedcl deploy --help`); "
            "a folder of this name is ./sites"
        )
    with step(f"loading {config.data.name}"):
        data = load_dataset(config.data)
    if config.evaluate.protocol == "pfllib":
        if len(data.owners) and data.owner_kind == "natural":
            raise CafedclError(
                "evaluate.protocol = pfllib: this data set has clients of its own; "
                "use the complete protocol"
            )
        return data.merged()
    return data


def settle(config: Config, data: Dataset, device: torch.device) -> Config:
    """Return the config with every `auto` and every path resolved for this machine."""
    model = config.model
    engine = config.engine
    source = config.data
    split = config.split
    if source.name != SITES and is_own(source.name):
        source = replace(source, name=absolute(source.name))
    if source.test and is_own(source.test):
        source = replace(source, test=absolute(source.test))
    if source.dir:
        source = replace(source, dir=absolute(source.dir))
    if split.file:
        split = replace(split, file=absolute(split.file))
    if model.weights:
        model = replace(model, weights=absolute(model.weights))
    place = Path(model.name.partition(":")[2]).expanduser()
    if model.source == "hf" and place.is_dir():
        model = replace(model, name=f"hf:{place.resolve()}")
    if model.name == "auto":
        model = replace(model, name=auto_model(data.shape))
    if engine.onednn == "auto":
        engine = replace(engine, onednn="off" if is_arm() or model.name == "cnn8" else "on")
    engine = settle_engine(engine, device)
    engine = replace(engine, device=str(device))
    release = config.release.settled(own_data=config.at_sites)
    return replace(config, model=model, engine=engine, data=source, split=split, release=release)


def settle_engine(engine: EngineOptions, device: torch.device) -> EngineOptions:
    """Return the engine's options with its name and its precision decided."""
    if engine.name == "auto":
        by_device = {"cuda": "cuda", "cpu": "cpu"}
        engine = replace(engine, name=by_device.get(device.type, "reference"))
    if engine.name == "cpu" and device.type != "cpu":
        raise CafedclError(
            f"engine.name = cpu: it runs on a CPU, not on '{device}'; use cuda or reference"
        )
    if engine.name == "cuda" and device.type != "cuda" and engine.device != "cpu":
        raise CafedclError(
            f"engine.name = cuda: it needs a CUDA device, not '{device}'; use cpu "
            "(to test its code path without a GPU, set engine.device = cpu as well)"
        )
    if engine.precision == "auto":
        captured = engine.name == "cuda" and device.type == "cuda"
        engine = replace(engine, precision="bf16" if captured else "fp32")
    if engine.name != "cuda" and engine.precision != "fp32":
        raise CafedclError(
            f"engine.precision = {engine.precision}: only the cuda engine has a choice; use fp32"
        )
    return engine


def settle_split(config: Config, data: Dataset) -> tuple[Config, Shards]:
    """Assign the images; a split with clients of its own (natural, or from a file) decides how many
    there are.
    """
    kind = config.split.kind
    clients = config.federation.clients_wanted
    owned = data.owner_kind if len(data.owners) else ""
    if kind == "auto":
        kind = "natural" if owned == "natural" else "dirichlet"
    if kind in OWNED:
        if kind != owned:
            raise CafedclError(
                f"split.kind = {kind}: the data set '{config.data.name}' has {OWNED[kind]}"
                + (f"; or use --split {owned}" if owned else "")
            )
        clients = int(data.owners.max()) + 1
    options = replace(config.split, kind=kind)
    # An option that `natural` does not use is found only now if the kind was `auto`.
    check_together(options, "split")
    if kind == "file" and config.data.images and is_table(Path(options.file)):
        check_labels(Path(absolute(options.file)))
    test_share = PFLLIB_TEST_SHARE if config.evaluate.protocol == "pfllib" else 0.0
    shards = split(
        data.train_y,
        data.owners,
        data.classes,
        clients,
        options,
        config.run.seed,
        test_share,
        data.groups,
        SplitWords(classes=data.names, clients=data.owner_names if kind in OWNED else ()),
    )
    if kind in OWNED:
        shards = replace(shards, names=data.owner_names)
    if config.federation.clients not in (0, len(shards)):
        whose = "the file has {}" if kind == "file" else f"the data have {{}} {kind} clients"
        # A resumed run asks for the number of clients that it had.
        fewer = len(shards) < config.federation.clients
        raise CafedclError(
            f"federation.clients = {config.federation.clients}: {whose.format(len(shards))}; "
            + ("if the data of some are missing, put them back; otherwise " if fewer else "")
            + f"leave the number out, or choose another split than {kind}"
        )
    return replace(
        config, split=options, federation=replace(config.federation, clients=len(shards))
    ), shards


def build(
    config: Config, shape: Shape, classes: int, *, initial: bool = True, encoded: bool = False
) -> tuple[Method, Network, Tensors]:
    """Build the method, its network, and the server's state besides the model.

    Without ``initial``, the encoder's weights do not matter: others will be loaded. If images are
    already ``encoded``, the network begins behind the encoder.
    """
    encoder: nn.Module = GivenFeatures()
    notes: list[str] = []
    if not encoded:
        with torch_stream(config.run.seed, "model"):
            encoder, notes = make_encoder(config.model, shape, initial=initial)
    cls, _ = find_method(config.method.name)
    with torch_stream(config.run.seed, "method"):
        with explained_failure(f"model '{config.model.name}'"):
            dim = feature_dim(encoder, shape, place_of_model(config.model))
        clients = config.federation.clients
        method: Method = cls(config.method.options, classes, dim, clients)
        method.label_smoothing = config.train.label_smoothing
        network = Network(encoder, checked.head(method))
        network.notes = tuple(notes)
        return method, network, checked.start(method, network)


def prepare(config: Config, data: Dataset | None = None) -> Setup:
    """Build everything that a config describes. ``data`` is given where it is already loaded, as in
    a worker process.
    """
    chosen = config.model.name == "auto"
    if data is None:
        data = load_data(config)
    device = choose_device(config.engine.device)
    config, shards = settle_split(settle(config, data, device), data)
    data, claimed = with_flipped_labels(config, data, shards)
    # Scores are weighted by the classes that clients really hold, even those of lying clients.
    setup = replace(assemble(config, data, claimed, device), counts=shards.counts)
    setup.task.network.chosen = chosen
    if not setup.task.enrolment.counts.any():
        raise CafedclError(
            f"release.fewest = {config.release.fewest}: no client has that many images of a "
            "class, so no reply would count; use a smaller number"
        )
    return setup


def assemble(
    config: Config,
    data: Dataset,
    shards: Shards,
    device: torch.device,
    census: Census | None = None,
) -> Setup:
    """Combine a settled config with its data.

    ``census`` is given at a site, which does not know all clients.
    """
    if data.classes < 2:
        raise CafedclError(
            f"{config.data.name}: there is only one class, '{data.names[0]}', so there is nothing "
            "to learn; a folder of images has one folder for each class"
        )
    check_schedule(config)
    check_attack(config)
    check_crop(config, data.shape)
    check_stored_models(config)
    method, network, state = build(config, data.shape, data.classes, encoded=data.is_encoded)
    check_personal(method)
    check_rates(config, method)
    check_levels(config, method, network)
    check_trainable(config, method, network)
    if isinstance(network.encoder, PretrainedEncoder):
        # A pretrained encoder has its own normalisation instead of the data's.
        data = replace(data, mean=network.encoder.mean, std=network.encoder.std)
    network.to(device)
    mine = merge_clients(shards) if method.pooled else shards
    check_replies(config, len(mine))
    make_augmenter = find_augmenter(config.augment.name)
    augmenter = make_augmenter(config.augment.options, data.classes, data.shape, config.run.seed)
    release = Release(config.release.settled(own_data=config.at_sites))
    told = release.counts(mine.counts)
    effective = checked.effective_counts(method, told, augmenter.new_samples(told))
    clients = ClientData(
        data=data.to(device),
        shards=_to(mine, device),
        census=census or told_of_all(config, told, effective),
        own_rows=own_rows(config, data, device),
    )
    task = Task(
        method=method,
        network=network,
        initial={name: value.detach().clone() for name, value in network.state_dict().items()},
        clients=clients,
        tail=TailAugmentation(augmenter, clients, config.run.seed),
        schedule=LocalSchedule(
            options=config.train,
            typical=max(1, round(float(shards.counts.sum()) / len(shards))),
            pooled=method.pooled,
            rounds=config.federation.rounds,
        ),
        transforms=make_transforms(config.train, data.shape, clients.data.mean, clients.data.std),
        seed=config.run.seed,
        rounds=config.federation.rounds,
        eval_batch=config.evaluate.batch,
        scores_own=config.evaluate.own_every > 0 and not method.pooled,
        threads=config.engine.threads,
        onednn=config.engine.onednn == "on",
        private_steps=private_steps(config),
        release=release,
    )
    check_scores(task)
    if runs_once(task):
        task = behind_encoder(task, data_folder(config.data.dir))
    test_counts = tuple(shards.test.sizes.tolist())
    return Setup(config, task, state, shards.counts, test_counts, shards.names)


def private_steps(config: Config) -> PrivateSteps | None:
    """Return how clients make their steps private; None if they do not."""
    options = config.privacy
    if not options.protects_records:
        return None
    from_system = options.from_system(own_data=config.at_sites)
    return PrivateSteps(options.noise, options.clip, config.run.seed, from_system)


def told_of_all(config: Config, counts: Tensor, effective: Tensor) -> Census:
    """Return what clients learn about all clients, from their counts and effective counts.

    With client privacy they learn nothing about each other, because it would have no noise.
    """
    census = Census(effective.amax(0), effective.sum(0), counts.sum(0))
    if config.privacy.protects_clients:
        return Census(*map(torch.zeros_like, census))
    return census


def own_rows(config: Config, data: Dataset, device: torch.device) -> Tensor | None:
    """Return the test images that own models are scored on; None for all."""
    if not 0 < config.evaluate.own_images < len(data.test_y):
        return None
    return stratified_rows(data.test_y.cpu(), config.evaluate.own_images).to(device)


def _to(shards: Shards, device: torch.device) -> Shards:
    return replace(
        shards,
        train=shards.train.to(device),
        validation=shards.validation.to(device),
        test=shards.test.to(device),
    )
