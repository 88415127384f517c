"""Jobs and results as tensors and a header, and the line between two processes that carries them."""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from cafedcl.core.contract import Down, Failure, Job, Reply, Up
from cafedcl.core.tensors import Header, Tensors, pack, prefixed, under, unpack
from cafedcl.engine.cpu.groups import JobGroup
from cafedcl.engine.cpu.shared_memory import SharedMemory

READY = b"r"
DOWN = b"d"
JOBS = b"j"
RESULTS = b"a"
"""What a message is: a process is ready, what the server sends, a group of jobs, what came of it.
"""
HERE = b"h"
THERE = b"t"
"""Where a message's content is: behind these letters, or in the shared memory."""


class Message(NamedTuple):
    """What a message carries."""

    tensors: Tensors
    header: Header


def down_parts(down: Down) -> Message:
    """Return what the server sends; it is the same for every client of a round."""
    return Message(down.tensors, {"round": down.round})


def to_down(parts: Message) -> Down:
    """Return what :func:`down_parts` was given."""
    return Down(parts.header["round"], parts.tensors)


def group_parts(group: JobGroup) -> Message:
    """Return jobs without their Down, which travels once per round."""
    header = {"jobs": [{"client": job.client, "evaluate": job.evaluate} for job in group]}
    return Message(_numbered([job.memory for job in group]), header)


def to_group(parts: Message, down: Down) -> JobGroup:
    """Return what :func:`group_parts` was given, with the round's Down."""
    jobs = enumerate(parts.header["jobs"])
    return tuple(
        Job(job["client"], down, under(f"{n}/", parts.tensors), job["evaluate"]) for n, job in jobs
    )


def result_parts(result: Reply | Failure) -> Message:
    """Return a finished job."""
    if isinstance(result, Failure):
        return Message({}, {"client": result.client, "reason": result.reason})
    up = result.up
    parts = {
        "model/": up.model,
        "up/": up.tensors,
        "notes/": up.notes,
        "memory/": result.memory,
        "hits/": result.correct,
    }
    tensors = {
        name: value
        for prefix, part in parts.items()
        for name, value in prefixed(prefix, part).items()
    }
    return Message(
        tensors,
        {"client": up.client, "samples": up.samples, "losses": up.losses, "seconds": up.seconds},
    )


def to_result(parts: Message) -> Reply | Failure:
    """Return what :func:`result_parts` was given."""
    tensors, header = parts
    if "reason" in header:
        return Failure(header["client"], header["reason"])
    model, sent, notes = (under(prefix, tensors) for prefix in ("model/", "up/", "notes/"))
    up = Up(model=model, tensors=sent, notes=notes, **header)
    return Reply(up, under("memory/", tensors), under("hits/", tensors))


def group_result_parts(results: Sequence[Reply | Failure]) -> Message:
    """Return the finished jobs of a group."""
    each = [result_parts(result) for result in results]
    return Message(
        _numbered([parts.tensors for parts in each]), {"results": [parts.header for parts in each]}
    )


def to_group_results(parts: Message) -> list[Reply | Failure]:
    """Return what :func:`group_result_parts` was given."""
    headers = enumerate(parts.header["results"])
    return [
        to_result(Message(under(f"{number}/", parts.tensors), header)) for number, header in headers
    ]


def _numbered(parts: Sequence[Tensors]) -> Tensors:
    return {
        name: value
        for number, part in enumerate(parts)
        for name, value in prefixed(f"{number}/", part).items()
    }


class Channel:
    """One end of a pipe, and the shared memory beside it, through which goes whatever fits."""

    def __init__(self, pipe: Connection, memories: dict[bytes, SharedMemory]) -> None:
        self.pipe = pipe
        self.memories = memories

    def send(self, kind: bytes, parts: Message) -> None:
        """Send a message. Each kind has memory of its own, and is sent again only when the last has
        been dealt with.
        """
        memory = self.memories.get(kind)
        if memory is not None and memory.write(*parts):
            self.pipe.send_bytes(kind + THERE)
        else:
            self.pipe.send_bytes(kind + HERE + pack(*parts))

    def receive(self, *, copied: bool) -> tuple[bytes, Message]:
        """Return the next message; what is not copied is good until the next message of its kind."""
        frame = self.pipe.recv_bytes()
        kind = frame[:1]
        where = frame[1:2]
        if where == THERE:
            return kind, Message(*self.memories[kind].read(copied=copied))
        return kind, Message(*unpack(frame[2:])) if where == HERE else Message({}, {})
