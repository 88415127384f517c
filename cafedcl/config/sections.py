"""The whole configuration of a run: sections of options, read from TOML, flags and ``--set``.

A config is resolved once, before anything runs; the resolved form is what the run folder stores.
"""

import dataclasses
import tomllib
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cafedcl.config.data_options import DataOptions
from cafedcl.config.model_options import ModelOptions
from cafedcl.config.options import option, parse_value, to_plain, to_toml, toml_section
from cafedcl.config.privacy_options import PrivacyOptions
from cafedcl.config.release_options import ReleaseOptions
from cafedcl.config.server_options import ServerStepOptions
from cafedcl.config.split_options import SplitOptions
from cafedcl.config.train_options import MOST_IN_BATCH, TrainOptions
from cafedcl.config.trust_options import AttackOptions, DefenceOptions
from cafedcl.core.errors import CafedclError

SITES = "sites"
"""The data set's name where every site of a deployment has its own."""
DEFAULT_CLIENTS = 20
"""The number of clients if neither the config nor the data specify it."""
MOST_ROUNDS = 1_000_000
MOST_PROCESSORS = 1024
"""Threads or worker processes: more than any machine has; far more crash the libraries."""
SECONDS_OF_A_YEAR = 31_536_000
"""Waiting longer than this overflows the timers of some systems."""


@dataclass(frozen=True)
class RunOptions:
    """Randomness of the run."""

    seed: int = option(0, "random seed", low=0, high=2**63 - 1)


@dataclass(frozen=True)
class FederationOptions:
    """Clients and rounds."""

    clients: int = option(
        0,
        "number of clients; 0: as many as the data set or the split file has, else "
        f"{DEFAULT_CLIENTS}",
        low=0,
        high=10_000_000,
    )
    rounds: int = option(100, "number of communication rounds", low=1, high=MOST_ROUNDS)
    participation: float = option(
        1.0, "share of the clients sampled in each round", above=0.0, high=1.0
    )
    dropout: float = option(
        0.0, "probability that a sampled client drops out during a round", low=0.0, high=1.0
    )
    drop: tuple[str, ...] = option(
        (), 'clients that drop out, as "round:client,client"; both are counted from 0'
    )
    min_replies: int = option(
        1,
        "replies needed for an update; with fewer, the round is skipped",
        low=1,
        high=10_000_000,
    )

    @property
    def clients_wanted(self) -> int:
        """The number of clients where the data do not decide it."""
        return self.clients or DEFAULT_CLIENTS

    def participants(self, clients: int) -> int:
        """Return how many of the given number of clients are sampled in a round: at least one."""
        return max(1, round(self.participation * clients))


@dataclass(frozen=True)
class EvaluateOptions:
    """Evaluation."""

    every: int = option(
        1,
        "rounds between evaluations of the server's model; the last round always counts",
        low=1,
        high=MOST_ROUNDS,
    )
    own_every: int = option(
        1,
        "rounds between evaluations of the clients' own models, which are also due in the last "
        "round; 0: do not evaluate them",
        low=0,
        high=MOST_ROUNDS,
    )
    own_images: int = option(
        0,
        "test images on which each own model is scored, at least one of every class; 0: all",
        low=0,
        high=1_000_000_000,
    )
    protocol: str = option(
        "complete",
        "complete: the whole test set; pfllib: training and test images merged, then split 75/25 "
        "in each client",
        choices=("complete", "pfllib"),
    )
    shots: tuple[int, int] = option(
        (100, 20),
        "classes with more training images than the first number are many-shot, those with fewer "
        "than the second few-shot",
        low=1,
    )
    batch: int = option(500, "images per evaluation batch", low=1, high=MOST_IN_BATCH)
    full: bool = option(
        True,
        "after the last round, also score probabilities (AUROC, calibration, …), and fit the "
        "calibration of predictions; takes a moment",
    )
    specificity: float = option(
        0.95,
        "specificity at which the sensitivity of each class is reported, after the last round",
        above=0.0,
        high=1.0,
    )
    loop: int = option(
        64,
        "images per class to measure class centres on, for the bias loop; 0: do not measure it",
        low=0,
        high=1_000_000,
    )

    def contradiction(self) -> str | None:
        """Return why options contradict each other, or None."""
        if self.own_images and self.protocol == "pfllib":
            return (
                f"own_images = {self.own_images}: under the protocol pfllib, each client has its "
                "own test images, and all of them are used; leave it out"
            )
        many, few = self.shots
        if many >= few:
            return None
        return (
            f"shots = [{many}, {few}]: the first number, for many-shot classes, "
            "must not be the smaller one"
        )


@dataclass(frozen=True)
class EngineOptions:
    """How clients are trained, and on which device."""

    name: str = option(
        "auto",
        "how clients are trained. auto: chosen by the device; cuda: captured steps on a GPU; "
        "cpu: stacks of clients in worker processes; reference: plain PyTorch, one client after "
        "another; flower: simulated on Flower and Ray (`cafedcl deploy` runs across machines)",
        choices=("auto", "reference", "cpu", "cuda", "flower"),
    )
    device: str = option("auto", "device to train on: auto, cpu, cuda, cuda:1 or mps")
    precision: str = option(
        "auto",
        "precision of the encoder; weights and losses are always fp32. auto: bf16 with the cuda "
        "engine, else fp32",
        choices=("auto", "fp32", "tf32", "bf16"),
    )
    compile: str = option(
        "auto",
        "cuda: compile the training step; auto: if the run is long enough for it to pay off",
        choices=("auto", "on", "off"),
    )
    gpus: int = option(
        1,
        "cuda: number of GPUs that clients are assigned to, beginning with engine.device",
        low=1,
        high=1024,
    )
    alike: int = option(
        1,
        "cuda: number of runs of this method and model that share compiled code, which decides "
        "whether compiling pays off; `compare` and `sweep` set it",
        low=1,
        high=1_000_000,
    )
    streams: int = option(
        0,
        "cuda: number of clients trained at the same time; 0: chosen by model size",
        low=0,
        high=64,
    )
    workers: int = option(
        0,
        "cpu: number of worker processes; 1: none; 0: one per core if that is faster",
        low=0,
        high=MOST_PROCESSORS,
    )
    stack: int = option(
        0,
        "cpu: number of clients stacked in one process; 1: no stacking; 0: chosen by step size",
        low=0,
        high=4096,
    )
    onednn: str = option(
        "auto",
        "use oneDNN kernels on a CPU; auto: not on ARM and not for cnn8, where they are slower",
        choices=("auto", "on", "off"),
    )
    deadline: float = option(
        600.0, "flower: seconds a site has to answer", above=0.0, high=SECONDS_OF_A_YEAR
    )
    threads: int = option(
        1,
        "PyTorch threads per client; results are bit-identical only for the same number",
        low=1,
        high=MOST_PROCESSORS,
    )


@dataclass(frozen=True)
class StoreOptions:
    """What the run folder stores."""

    checkpoint_every: int = option(10, "rounds between checkpoints", low=1, high=MOST_ROUNDS)
    notes: bool = option(True, "store client notes (confidence and its components)")
    own: bool = option(
        False,
        "store every client's own model, as it was after the client's last visit, to predict with "
        "it later; a checkpoint grows by a model per client",
    )
    wrong: str = option(
        "auto",
        "store small pictures of the test images that the server's model gets most wrong. auto: "
        "not in a deployment, where sites have data of their own",
        choices=("auto", "on", "off"),
    )

    def shows_images(self, data: str) -> bool:
        """Return whether test images of a data set may be shown."""
        return self.wrong == "on" or (self.wrong == "auto" and data != SITES)


@dataclass(frozen=True)
class Choice:
    """A method or an augmentation with its options, which it declares itself."""

    name: str
    options: Any


@dataclass(frozen=True)
class Config:
    """A fully resolved configuration."""

    method: Choice
    augment: Choice
    run: RunOptions = RunOptions()
    # Frozen like the others, so that all configs may share them.
    data: DataOptions = DataOptions()  # noqa: RUF009
    split: SplitOptions = SplitOptions()  # noqa: RUF009
    model: ModelOptions = ModelOptions()  # noqa: RUF009
    train: TrainOptions = TrainOptions()  # noqa: RUF009
    federation: FederationOptions = FederationOptions()
    server: ServerStepOptions = ServerStepOptions()  # noqa: RUF009
    evaluate: EvaluateOptions = EvaluateOptions()
    engine: EngineOptions = EngineOptions()
    store: StoreOptions = StoreOptions()
    attack: AttackOptions = AttackOptions()  # noqa: RUF009
    defence: DefenceOptions = DefenceOptions()  # noqa: RUF009
    privacy: PrivacyOptions = PrivacyOptions()  # noqa: RUF009
    release: ReleaseOptions = ReleaseOptions()  # noqa: RUF009

    @property
    def at_sites(self) -> bool:
        """Whether the training images are at sites, which have data of their own."""
        return self.data.name == SITES

    def to_plain(self) -> dict[str, Any]:
        """Return the config as nested plain values; ``resolve`` reads them back."""
        choices = {name: getattr(self, name) for name in CHOICES}
        plain: dict[str, Any] = {
            name: {"name": it.name, **to_plain(it.options)} for name, it in choices.items()
        }
        return plain | {name: to_plain(getattr(self, name)) for name in SECTIONS}

    @property
    def label(self) -> str:
        """The method's name with its preset and tail augmentation, such as ``fedproto+gan``."""
        return label(self.method.name, self.augment.name)

    def to_toml(self, *, explain: bool = False, advanced: bool = True) -> str:
        """Return the config as TOML that can be read back.

        ``explain`` adds the meaning of every option. Without ``advanced``, advanced options that
        have their default are left out.
        """
        shown = {"explain": explain, "advanced": advanced}
        lines: list[str] = []
        for section, command in CHOICES.items():
            choice = getattr(self, section)
            head, *rest = toml_section(section, choice.options, **shown)
            lines.append(head)
            if explain:
                lines.append(f"# {section}; `cafedcl {command}` lists all")
            lines += [f"name = {to_toml(choice.name)}", *rest]
        for section in SECTIONS:
            lines += toml_section(section, getattr(self, section), **shown)
        return "\n".join(lines)


CHOICES = {"method": "methods", "augment": "augmenters"}
"""The sections whose options depend on their name, and the command that lists the names."""
SECTIONS: dict[str, type[Any]] = {
    field.name: type(field.default)
    for field in dataclasses.fields(Config)
    if field.name not in CHOICES
}


def full_name(key: str) -> str | None:
    """Return an option of this name with its section, such as ``train.lr``, or None."""
    for section, options in SECTIONS.items():
        if key in {field.name for field in dataclasses.fields(options)}:
            return f"{section}.{key}"
    return None


def label(method: str, augment: str) -> str:
    """Return the name of a method with a tail augmentation, such as ``fedproto+gan``."""
    return method if augment == "none" else f"{method}+{augment}"


@lru_cache(maxsize=256)
def _parsed(text: str) -> dict[str, Any]:
    """Return a text's tables. Cached: a report reads the same configs again and again."""
    return tomllib.loads(text)


def read_file(path: str | Path) -> dict[str, Any]:
    """Return a TOML file's tables."""
    try:
        # Some editors put a byte-order mark at the beginning; utf-8-sig leaves it out.
        text = Path(path).read_text(encoding="utf-8-sig")
        if "\0" in text:
            raise CafedclError(f"{path}: {_why_null(text)}")
        return deepcopy(_parsed(text))
    except UnicodeDecodeError as error:
        raise CafedclError(
            f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CafedclError(f"{path}: not valid TOML: {error}") from None
    except IsADirectoryError:
        raise CafedclError(
            f"{path}: a config file is expected, and this is a folder; images are given by --data "
            f"{path}, and the config of a run is the file config.toml in its folder"
        ) from None
    except OSError as error:
        raise CafedclError(f"{path}: cannot be read: {error.strerror}") from None


def _why_null(text: str) -> str:
    """Return why a text has null characters, and what to do."""
    nulls = text[text.find("\0") : text.rfind("\0")]
    if nulls.strip("\0"):
        # English text in UTF-16 is valid UTF-8 with a null after every letter.
        return "not UTF-8 text but UTF-16, it seems; save it as UTF-8"
    return "damaged: it has a block of zero bytes, as after a power loss; restore it from a backup"


def assign(tables: dict[str, Any], text: str) -> None:
    """Apply one ``section.key=value`` to the tables; the value is TOML or a plain word."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        raise CafedclError(f"--set {text}: section.key=value is expected, such as train.lr=0.05")
    section_of(tables, section)[key] = parse_value(value.strip())


def name_and_value(setting: str) -> tuple[str, str]:
    """Return both sides of ``section.key=value``."""
    name, _, value = setting.partition("=")
    return name.strip(), value.strip()


def section_of(tables: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of the tables; create it if it is missing."""
    table = tables.setdefault(name, {})
    if not isinstance(table, dict):
        raise CafedclError(f"{name}: a section is expected, such as [{name}]")
    return table
