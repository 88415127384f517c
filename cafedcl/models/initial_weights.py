"""The weights that an encoder starts with: loaded from a file, and frozen."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.files import read_content
from cafedcl.core.tensors import Tensors

NAMED = 3
"""How many weights a message names."""
ALL = "all"


def load_weights(encoder: nn.Module, path: str) -> list[str]:
    """Load a file's weights that match by name and shape; return remarks for the user.

    Names may have a prefix in the file, such as ``backbone.``, or in the encoder.
    """
    where = f"model.weights = {path}"
    if Path(path).suffix.lower() != ".safetensors":
        raise CafedclError(
            f"{where}: a file that ends in .safetensors is expected; convert weights of PyTorch "
            "with safetensors.torch.save_file"
        )
    if Path(path).is_dir():
        raise CafedclError(f"{where}: it is a folder; name a file in it")
    try:
        # safetensors reports files that it cannot open as missing.
        with Path(path).open("rb"):
            given = load_file(path)
    except FileNotFoundError:
        raise CafedclError(f"{where}: there is no such file") from None
    except OSError as error:
        raise CafedclError(f"{where}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CafedclError(
            f"{where}: not a whole .safetensors file ({error}); copy or save it again"
        ) from None
    wanted = encoder.state_dict()
    renamed = _renamed(given, wanted)
    fitting = {
        name: value
        for name, value in renamed.items()
        if name in wanted and value.shape == wanted[name].shape
    }
    if not fitting:
        raise CafedclError(
            f"{where}: none of its {len(given)} weights matches the encoder; it has "
            f"{_listed(given)}, the encoder {_listed(wanted)}"
        )
    _refuse_unusable(where, fitting, wanted)
    encoder.load_state_dict({**wanted, **fitting})
    problems = {
        "of another shape": [name for name in renamed if name in wanted and name not in fitting],
        "missing in the file": [name for name in wanted if name not in renamed],
        "unknown to the encoder": [name for name in renamed if name not in wanted],
    }
    words = [f"{len(fitting)} of the encoder's {len(wanted)} weights are loaded"]
    words += [f"{len(names)} {what}: {_listed(names)}" for what, names in problems.items() if names]
    return [f"{where}: {'; '.join(words)}"]


def weights_digest(path: str) -> str:
    """Return a checksum of a file of weights; empty without a file."""
    return hashlib.sha256(read_content(Path(path))).hexdigest() if path else ""


def _refuse_unusable(where: str, fitting: Tensors, wanted: Tensors) -> None:
    """Refuse weights that no training can start from."""
    for name, value in fitting.items():
        kind = wanted[name].dtype
        if kind.is_floating_point and not value.is_floating_point():
            # Integers are quantised weights, which lack their scale.
            raise CafedclError(
                f"{where}: '{name}' is of type {value.dtype}, and the encoder's is {kind}; save "
                "weights that are neither quantised nor complex"
            )
        # In the encoder's type: a large 64-bit number is infinite in 32 bits.
        if not value.to(kind).isfinite().all():
            raise CafedclError(
                f"{where}: '{name}' holds NaN or infinite numbers; save the weights of an earlier "
                "checkpoint"
            )


def _renamed(given: Tensors, wanted: Tensors) -> Tensors:
    """Return a file's weights by the encoder's names: with one prefix replaced by another."""
    pairs: Counter[tuple[str, str]] = Counter()
    by_end: dict[str, list[str]] = {}
    for name in wanted:
        by_end.setdefault(name.rpartition(".")[2], []).append(name)
    for key, value in given.items():
        for name in by_end.get(key.rpartition(".")[2], ()):
            if value.shape == wanted[name].shape:
                pairs[_prefixes(key, name)] += 1
    # The most frequent pair; of several, the shortest.
    off, on = min(
        pairs,
        key=lambda pair: (-pairs[pair], len(pair[0]) + len(pair[1])),
        default=("", ""),
    )
    return {
        on + key.removeprefix(off) if key.startswith(off) else key: value
        for key, value in given.items()
    }


def _prefixes(key: str, name: str) -> tuple[str, str]:
    """Return the prefix to remove from one name and the one to add to get the other."""
    one = key.split(".")
    other = name.split(".")
    while one and other and one[-1] == other[-1]:
        one.pop()
        other.pop()
    return "".join(f"{part}." for part in one), "".join(f"{part}." for part in other)


def freeze(encoder: nn.Module, text: str) -> None:
    """Exclude weights from training: all, or those whose names begin with one of the words."""
    names = dict(encoder.named_parameters())
    # Pretrained networks are inside a wrapper, whose own names users need not know.
    inner = {name: name.removeprefix("net.").removeprefix("model.") for name in names}
    for word in filter(None, (part.strip() for part in text.split(","))):
        chosen = [name for name in names if word == ALL or _begins(inner[name], word)]
        if not chosen:
            tops = sorted({name.partition(".")[0] for name in inner.values()})
            raise CafedclError(
                f"model.freeze = {text}: no weight of the encoder begins with '{word}'; "
                f"{nearest(word, [ALL, *tops])}"
            )
        for name in chosen:
            names[name].requires_grad_(False)


def _begins(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word.rstrip('.')}.")


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return (", ".join(known[:NAMED]) or "none") + more
