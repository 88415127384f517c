"""Ways in which a run folder can be damaged, for tests of the commands that read or resume one.

Every damage works on any run folder with at least two rounds, two evaluations and one checkpoint.
It uses only what is in the folder, so a test copies a finished or interrupted run and damages the
copy.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from cafedcl.core.tensors import digest, pack, unpack

Damage = Callable[[Path], object]
"""Damages the run folder that it is given."""

FILES = (
    "config.toml",
    "environment.json",
    "data.safetensors",
    "metrics.jsonl",
    "evaluations/*",
    "checkpoints/*",
)
"""The files of a run folder; a star stands for the newest file of a folder."""


def damages() -> Iterator[tuple[str, Damage]]:
    """Yield all damages with their names; a name starts with the damaged file."""
    for file in FILES:
        for kind, spoil in GENERAL.items():
            yield f"{file}: {kind}", at(file, spoil)
    for file, lines in LINES.items():
        for kind, content in lines.items():
            yield f"{file}: {kind}", at(file, written(content))
    for kind, change in CONFIG.items():
        yield f"config.toml: {kind}", at("config.toml", change)
    for kind, change in METRICS.items():
        yield f"metrics.jsonl: {kind}", at("metrics.jsonl", change)
    for file, changes in PACKED.items():
        for kind, repack in changes.items():
            yield f"{file}: {kind}", at(file, repacked(repack))
    for kind, damage in FOLDERS.items():
        yield kind, damage


def newest(folder: Path, file: str) -> Path:
    """Return the file that a name in `FILES` stands for."""
    return max(folder.glob(file))


def at(file: str, spoil: Damage) -> Damage:
    """Return the damage of a run folder that spoils one of its files."""
    return lambda folder: spoil(newest(folder, file))


def written(content: bytes | str) -> Damage:
    """Return the damage that replaces the content of a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda file: file.write_bytes(data)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncate(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def overwrite_middle(file: Path) -> None:
    """What a bad disk does: a few bytes in the middle are others."""
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4] = b"\xff\x00\xfe\x01"
    file.write_bytes(data)


def zeros(file: Path) -> None:
    """What a crash of the machine can leave: the size is right, and the content is zeros."""
    file.write_bytes(bytes(len(file.read_bytes())))


def append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"\x00\xffnot from here")


def become_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def link_to_itself(file: Path) -> None:
    """A file that nobody can open, not even the superuser, who ignores permissions."""
    file.unlink()
    file.symlink_to(file.name)


def forbid(file: Path) -> None:
    file.chmod(0)


GENERAL: dict[str, Damage] = {
    "missing": Path.unlink,
    "empty": empty,
    "truncated": truncate,
    "binary": written(bytes(range(256)) * 3),
    "overwritten in the middle": overwrite_middle,
    "zeros": zeros,
    "appended to": append,
    "a folder": become_folder,
    "a link to itself": link_to_itself,
}
if os.geteuid() != 0:
    GENERAL["no permission"] = forbid


DEEP = "[" * 100_000
LINES: dict[str, dict[str, bytes | str]] = {
    "config.toml": {
        "not TOML": "this is not TOML",
        "Latin-1": "[method]\nname = 'é'\n".encode("latin-1"),
        "nested too deep": f"a = {DEEP}",
    },
    "environment.json": {
        "a list": "[]",
        "null": "null",
        "a number": "3",
        "text": '"text"',
        "without any key": "{}",
        "packages are a list": '{"packages": []}',
        "packages are null": '{"packages": null}',
        "a version is a list": '{"packages": {"torch": []}}',
        "the command is text": '{"command": "cafedcl run", "packages": {}}',
        "the notices are a number": '{"notices": 3, "packages": {}}',
        "NaN": "NaN",
        "nested too deep": DEEP,
        "Latin-1": '{"device_name": "é"}'.encode("latin-1"),
    },
}


def reset(section: str, key: str, value: str) -> Damage:
    """Return the damage that gives an option of the config another value; none if it is empty."""

    def spoil(file: Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines()
        start = lines.index(f"[{section}]") if section else 0
        at = next(n for n in range(start, len(lines)) if lines[n].startswith(f"{key} ="))
        lines[at] = f"{key} = {value}" if value else ""
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return spoil


def flat_section(section: str) -> Damage:
    """Return the damage that makes a text of a section of the config."""

    def spoil(file: Path) -> None:
        content = file.read_text(encoding="utf-8")
        before, _, rest = content.partition(f"[{section}]\n")
        after = rest[rest.find("\n[") + 1 :]
        file.write_text(f'{section} = "text"\n{before}{after}', encoding="utf-8")

    return spoil


def without_section(section: str) -> Damage:
    """Return the damage that removes a section of the config."""

    def spoil(file: Path) -> None:
        before, _, rest = file.read_text(encoding="utf-8").partition(f"[{section}]\n")
        file.write_text(before + rest[rest.find("\n[") + 1 :], encoding="utf-8")

    return spoil


CONFIG: dict[str, Damage] = {
    "only a version": written("format = 2\n"),
    "a newer version": reset("", "format", "99"),
    "a version that is text": reset("", "format", "'two'"),
    "a version that is a list": reset("", "format", "[]"),
    "no method": without_section("method"),
    "a method that is text": flat_section("method"),
    "an augmentation that is text": flat_section("augment"),
    "a method without a name": reset("method", "name", ""),
    "a method's name that is a number": reset("method", "name", "3"),
    "a method that nobody knows": reset("method", "name", "'perhaps'"),
    "a data set's name that is a list": reset("data", "name", "[]"),
    "no split": without_section("split"),
    "a split that is a number": reset("split", "kind", "3"),
    "an imbalance that is text": reset("split", "ir", "'high'"),
    "a seed that is text": reset("run", "seed", "'zero'"),
    "a negative seed": reset("run", "seed", "-1"),
    "rounds that are text": reset("federation", "rounds", "'three'"),
    "rounds that are infinite": reset("federation", "rounds", "inf"),
    "rounds that are true": reset("federation", "rounds", "true"),
    "no rounds": reset("federation", "rounds", "0"),
    "clients that are a list": reset("federation", "clients", "[4]"),
    "an unknown option": reset("train", "lr", "0.1\nfrom_elsewhere = 1"),
}


def changed_line(number: int, change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Return the damage that changes what one line of the metrics holds."""

    def spoil(file: Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines()
        lines[number] = json.dumps(change(json.loads(lines[number])))
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return spoil


def changed_lines(change: Callable[[list[str]], list[str]]) -> Damage:
    """Return the damage that changes which lines the metrics have."""

    def spoil(file: Path) -> None:
        lines = change(file.read_text(encoding="utf-8").splitlines())
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    return spoil


def put(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the change of a line that sets some of its keys."""
    return lambda line: {**line, **values}


def dropped(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the change of a line that removes a key."""
    return lambda line: {name: value for name, value in line.items() if name != key}


METRICS: dict[str, Damage] = {
    "a first line that is a list": changed_line(0, lambda _: []),
    "a first line that is an empty object": changed_line(0, lambda _: {}),
    "a first line that is null": changed_line(0, lambda _: None),
    "a last line that is a list": changed_line(-1, lambda _: []),
    "a last line that is an empty object": changed_line(-1, lambda _: {}),
    "a last line that is null": changed_line(-1, lambda _: None),
    "a last line that is a number": changed_line(-1, lambda _: 7),
    "a last line that is text": changed_line(-1, lambda _: "text"),
    "an unknown key": changed_line(-1, put(from_elsewhere=1)),
    "a round that is text": changed_line(-1, put(round="1")),
    "a round that is another one's": changed_line(-1, put(round=77)),
    "a negative round": changed_line(0, put(round=-1)),
    "a status that is null": changed_line(-1, put(status=None)),
    "a status that nobody knows": changed_line(-1, put(status="perhaps")),
    "participants that are a number": changed_line(-1, put(participants=3)),
    "failures that are an object": changed_line(-1, put(failed={"client": 1})),
    "failures that are numbers": changed_line(-1, put(failed=[1])),
    "a failure without a reason": changed_line(-1, put(failed=[{"client": 1}])),
    "dropped clients that are text": changed_line(-1, put(dropped="ab")),
    "traffic that is a list": changed_line(-1, put(traffic=[1, 2])),
    "traffic that is empty": changed_line(-1, put(traffic={})),
    "traffic that is text": changed_line(-1, put(traffic={"up_bytes": "1", "down_bytes": "1"})),
    "seconds that are a list": changed_line(-1, put(seconds=[1.0])),
    "seconds that are text": changed_line(-1, put(seconds={"train": "1"})),
    "losses that are a number": changed_line(-1, put(loss=1.0)),
    "a learning rate that is text": changed_line(-1, put(lr="0.1")),
    "scores that are a list": changed_line(-1, put(server=[0.9], own=[0.9])),
    "scores that are a number": changed_line(-1, put(server=0.9, own=0.9)),
    "a score that is text": changed_line(
        -1, put(server={"accuracy": "0.9"}, own={"client_mean": "0.9"})
    ),
    "a score that is a list": changed_line(
        -1, put(server={"accuracy": [0.9]}, own={"client_mean": [0.9]})
    ),
    "a score that is true": changed_line(
        -1, put(server={"accuracy": True}, own={"client_mean": True})
    ),
    "a line twice": changed_lines(lambda lines: [*lines, lines[-1]]),
    "two lines swapped": changed_lines(lambda lines: [lines[1], lines[0], *lines[2:]]),
    "the first line gone": changed_lines(lambda lines: lines[1:]),
    "an empty line in the middle": changed_lines(lambda lines: [lines[0], "", *lines[1:]]),
    "a line cut off in the middle": changed_lines(lambda lines: [lines[0][:40], *lines[1:]]),
    "a foreign line in the middle": changed_lines(lambda lines: [lines[0], "hello", *lines[1:]]),
    "nested too deep": changed_lines(lambda lines: [*lines[:-1], DEEP]),
}
METRICS |= {
    f"a line without {key}": changed_line(-1, dropped(key))
    for key in ("round", "status", "participants", "failed", "dropped", "traffic", "seconds")
}


Content = tuple[dict[str, torch.Tensor], dict[str, Any]]


def repacked(change: Callable[[dict[str, torch.Tensor], dict[str, Any]], Content]) -> Damage:
    """Return the damage that changes the tensors or the header of a packed file."""

    def spoil(file: Path) -> None:
        file.write_bytes(pack(*change(*unpack(file.read_bytes()))))

    return spoil


def headed(**values: Any) -> Callable[..., Content]:
    """Return the change that sets keys of the header."""
    return lambda tensors, header: (tensors, {**header, **values})


def without_key(key: str) -> Callable[..., Content]:
    """Return the change that removes a key of the header."""
    return lambda tensors, header: (tensors, {k: v for k, v in header.items() if k != key})


def without_tensor(start: str) -> Callable[..., Content]:
    """Return the change that removes tensors by the start of their names."""
    return lambda tensors, header: (
        {name: value for name, value in tensors.items() if not name.startswith(start)},
        header,
    )


def every_tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Content]:
    """Return the change of all tensors."""
    return lambda tensors, header: (
        {name: change(value) for name, value in tensors.items()},
        header,
    )


def flipped(value: torch.Tensor) -> torch.Tensor:
    """Return what a bad disk makes of a tensor: one bit of its first number is another."""
    spoilt = value.clone().contiguous()
    if spoilt.numel():
        spoilt.view(-1).view(torch.uint8)[0] ^= 1
    return spoilt


def sealed(change: Callable[..., Content]) -> Callable[..., Content]:
    """Return the change of a file whose digest fits its new content."""

    def change_and_seal(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> Content:
        tensors, header = change(tensors, {k: v for k, v in header.items() if k != "digest"})
        return tensors, {**header, "digest": digest(tensors, header)}

    return change_and_seal


PACKED: Mapping[str, Mapping[str, Callable[..., Content]]] = {
    "data.safetensors": {
        "other numbers": every_tensor(flipped),
        "other names": headed(names=list("abcdefghij")),
        "a digest that is a number": headed(digest=3),
        "without counts": sealed(without_tensor("counts")),
        "without the mean": sealed(without_tensor("mean")),
        "without names": sealed(without_key("names")),
        "without a shape": sealed(without_key("shape")),
        "too few names": sealed(headed(names=["one"])),
        "names that are a number": sealed(headed(names=5)),
        "names that are numbers": sealed(headed(names=list(range(10)))),
        "a shape that is text": sealed(headed(shape="1x8x8")),
        "a shape of two numbers": sealed(headed(shape=[8, 8])),
        "flat tensors": sealed(every_tensor(torch.flatten)),
        "negative counts": sealed(every_tensor(lambda value: -value - 1)),
        "tensors of text's type": sealed(every_tensor(lambda value: value.to(torch.uint8))),
    },
    "evaluations/*": {
        "other numbers": every_tensor(flipped),
        "without a header": sealed(lambda tensors, _: (tensors, {})),
        "nothing in it": sealed(lambda _, header: ({}, header)),
        "flat tensors": sealed(every_tensor(torch.flatten)),
        "tensors that are numbers": sealed(every_tensor(lambda value: value.flatten()[0])),
        "tensors without entries": sealed(every_tensor(lambda value: value[:0])),
        "tensors with too few rows": sealed(every_tensor(lambda value: value[:-1])),
        "NaN everywhere": sealed(every_tensor(lambda value: torch.full(value.shape, torch.nan))),
        "another round": sealed(headed(round=99)),
    },
    "checkpoints/*": {
        "other numbers": every_tensor(flipped),
        "without a digest": without_key("digest"),
        "a wrong digest": headed(digest="0" * 32),
        "a digest that is a number": headed(digest=3),
        "without a round": without_key("round"),
        "a round that is text": headed(round="three"),
        "a round after the last": headed(round=99),
        "a negative round": headed(round=-1),
        "without a state": sealed(without_tensor("state/")),
        "tensors with too few rows": sealed(
            every_tensor(lambda value: value[:-1] if value.ndim else value)
        ),
        "flat tensors": sealed(every_tensor(torch.flatten)),
        "NaN everywhere": sealed(every_tensor(lambda v: torch.full(v.shape, torch.nan))),
    },
}


def foreign(name: str, content: bytes = b"from elsewhere") -> Damage:
    """Return the damage that puts a file that is not ours into the folder."""
    return lambda folder: (folder / name).write_bytes(content)


def without_folder(name: str) -> Damage:
    """Return the damage that removes a folder of the run."""
    return lambda folder: shutil.rmtree(folder / name)


def file_for_folder(name: str) -> Damage:
    """Return the damage that puts a file where a folder of the run was."""

    def damage(folder: Path) -> None:
        shutil.rmtree(folder / name)
        (folder / name).write_bytes(b"from elsewhere")

    return damage


def foreign_folder(name: str) -> Damage:
    """Return the damage that puts a folder that is not ours into the run folder."""
    return lambda folder: (folder / name).mkdir(parents=True)


def remove_everything(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


FOLDERS: dict[str, Damage] = {
    "evaluations/: missing": without_folder("evaluations"),
    "evaluations/: a file": file_for_folder("evaluations"),
    "evaluations/: a foreign text": foreign("evaluations/notes.txt"),
    "evaluations/: a foreign name": foreign("evaluations/best.safetensors"),
    "evaluations/: a foreign number": foreign("evaluations/1.safetensors"),
    "evaluations/: a number that is none": foreign("evaluations/².safetensors"),
    "evaluations/: a negative round": foreign("evaluations/-00001.safetensors"),
    "evaluations/: a round that was not run": foreign("evaluations/999999.safetensors"),
    "evaluations/: an unfinished file": foreign("evaluations/000001.safetensors.tmp"),
    "evaluations/: a foreign folder": foreign_folder("evaluations/000000.safetensors.d"),
    "checkpoints/: missing": without_folder("checkpoints"),
    "checkpoints/: a file": file_for_folder("checkpoints"),
    "checkpoints/: a foreign text": foreign("checkpoints/notes.txt"),
    "checkpoints/: a foreign name": foreign("checkpoints/best.safetensors"),
    "checkpoints/: a number that is none": foreign("checkpoints/².safetensors"),
    "checkpoints/: a later round that is empty": foreign("checkpoints/999999.safetensors", b""),
    "checkpoints/: an unfinished file": foreign("checkpoints/999999.safetensors.tmp"),
    "checkpoints/: a foreign folder": foreign_folder("checkpoints/999999.safetensors"),
    "samples: a file": foreign("samples"),
    "samples/: a folder that looks like a picture": foreign_folder("samples/000001.png"),
    "lock: a folder": lambda folder: become_folder(folder / "lock"),
    "the folder: a foreign file": foreign("thesis.docx"),
    "the folder: nothing in it": remove_everything,
}
