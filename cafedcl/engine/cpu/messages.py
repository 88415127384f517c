"""Jobs and results as messages (tensors and a header), and the channel between two processes."""

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
"""Kinds of messages: a process is ready; what the server sends; a group of jobs; its results."""
IN_PIPE = b"p"
IN_MEMORY = b"m"
"""Where the content of a message is: after these letters, or in the shared memory."""


class Message(NamedTuple):
    """What a message carries."""

    tensors: Tensors
    header: Header


def down_message(down: Down) -> Message:
    """Return what the server sends; it is the same for every client of a round."""
    return Message(down.tensors, {"round": down.round})


def to_down(message: Message) -> Down:
    """Return what :func:`down_message` was given."""
    return Down(message.header["round"], message.tensors)


def group_message(group: JobGroup) -> Message:
    """Return jobs without their Down, which travels once per round."""
    header = {"jobs": [{"client": job.client, "evaluate": job.evaluate} for job in group]}
    return Message(_numbered([job.memory for job in group]), header)


def to_group(message: Message, down: Down) -> JobGroup:
    """Return what :func:`group_message` was given, with the round's Down."""
    return tuple(
        Job(job["client"], down, under(f"{number}/", message.tensors), job["evaluate"])
        for number, job in enumerate(message.header["jobs"])
    )


def result_message(result: Reply | Failure) -> Message:
    """Return a finished job."""
    if isinstance(result, Failure):
        return Message({}, {"client": result.client, "reason": result.reason})
    up = result.up
    tensors = {
        **prefixed("model/", up.model),
        **prefixed("up/", up.tensors),
        **prefixed("notes/", up.notes),
        **prefixed("memory/", result.memory),
        **prefixed("correct/", result.correct),
    }
    header = {
        "client": up.client,
        "samples": up.samples,
        "losses": up.losses,
        "seconds": up.seconds,
    }
    return Message(tensors, header)


def to_result(message: Message) -> Reply | Failure:
    """Return what :func:`result_message` was given."""
    tensors, header = message
    if "reason" in header:
        return Failure(header["client"], header["reason"])
    up = Up(
        model=under("model/", tensors),
        tensors=under("up/", tensors),
        notes=under("notes/", tensors),
        **header,
    )
    return Reply(up, under("memory/", tensors), under("correct/", tensors))


def group_result_message(results: Sequence[Reply | Failure]) -> Message:
    """Return the finished jobs of a group."""
    messages = [result_message(result) for result in results]
    header = {"results": [message.header for message in messages]}
    return Message(_numbered([message.tensors for message in messages]), header)


def to_group_results(message: Message) -> list[Reply | Failure]:
    """Return what :func:`group_result_message` was given."""
    return [
        to_result(Message(under(f"{number}/", message.tensors), header))
        for number, header in enumerate(message.header["results"])
    ]


def _numbered(parts: Sequence[Tensors]) -> Tensors:
    """Return several dicts as one, each below its number."""
    numbered: Tensors = {}
    for number, part in enumerate(parts):
        numbered |= prefixed(f"{number}/", part)
    return numbered


class Channel:
    """One end of a pipe, with shared memory for all content that fits.

    Each kind of message has its own memory, and is sent again only after the last one has been
    read, so nothing is overwritten too early.
    """

    def __init__(self, pipe: Connection, memories: dict[bytes, SharedMemory]) -> None:
        self.pipe = pipe
        self.memories = memories

    def send(self, kind: bytes, message: Message) -> None:
        """Send a message."""
        memory = self.memories.get(kind)
        if memory is not None and memory.write(*message):
            self.pipe.send_bytes(kind + IN_MEMORY)
        else:
            self.pipe.send_bytes(kind + IN_PIPE + pack(*message))

    def receive(self, *, copied: bool) -> tuple[bytes, Message]:
        """Return the next message; without a copy it is valid until the next of its kind."""
        frame = self.pipe.recv_bytes()
        kind = frame[:1]
        where = frame[1:2]
        if where == IN_MEMORY:
            return kind, Message(*self.memories[kind].read(copied=copied))
        if where == IN_PIPE:
            return kind, Message(*unpack(frame[2:]))
        return kind, Message({}, {})
