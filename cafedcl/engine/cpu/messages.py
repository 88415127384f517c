"""Jobs and results as tensors and a header, and the line between two processes that carries them."""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from cafedcl.core.contract import Down, Failure, Job, Reply, Up
from cafedcl.core.tensors import Header, Tensors, pack, prefixed, under, unpack
from cafedcl.engine.cpu.groups import Group
from cafedcl.engine.cpu.shared_memory import Slab

READY, DOWN, JOBS, RESULTS = b"r", b"d", b"j", b"a"
"""What a message is: a process is ready, what the server sends, a group of jobs, what came of it."""
HERE, THERE = b"h", b"t"
"""Where a message's content is: behind these letters, or in the shared memory."""


class Parts(NamedTuple):
    """What a message carries."""

    tensors: Tensors
    header: Header


def down_parts(down: Down) -> Parts:
    """Return what the server sends; it is the same for every client of a round."""
    return Parts(down.tensors, {"round": down.round})


def to_down(parts: Parts) -> Down:
    """Return what :func:`down_parts` was given."""
    return Down(parts.header["round"], parts.tensors)


def group_parts(group: Group) -> Parts:
    """Return jobs without their Down, which travels once per round."""
    header = {"jobs": [{"client": job.client, "evaluate": job.evaluate} for job in group]}
    return Parts(_numbered([job.memory for job in group]), header)


def to_group(parts: Parts, down: Down) -> Group:
    """Return what :func:`group_parts` was given, with the round's Down."""
    jobs = enumerate(parts.header["jobs"])
    return tuple(Job(job["client"], down, under(f"{n}/", parts.tensors), job["evaluate"]) for n, job in jobs)


def result_parts(result: Reply | Failure) -> Parts:
    """Return a finished job."""
    if isinstance(result, Failure):
        return Parts({}, {"client": result.client, "reason": result.reason})
    up = result.up
    parts = {"model/": up.model, "up/": up.tensors, "notes/": up.notes, "memory/": result.memory, "hits/": result.hits}
    tensors = {name: value for prefix, part in parts.items() for name, value in prefixed(prefix, part).items()}
    return Parts(tensors, {"client": up.client, "samples": up.samples, "losses": up.losses, "seconds": up.seconds})


def to_result(parts: Parts) -> Reply | Failure:
    """Return what :func:`result_parts` was given."""
    tensors, header = parts
    if "reason" in header:
        return Failure(header["client"], header["reason"])
    model, sent, notes = (under(prefix, tensors) for prefix in ("model/", "up/", "notes/"))
    up = Up(model=model, tensors=sent, notes=notes, **header)
    return Reply(up, under("memory/", tensors), under("hits/", tensors))


def group_result_parts(results: Sequence[Reply | Failure]) -> Parts:
    """Return the finished jobs of a group."""
    each = [result_parts(result) for result in results]
    return Parts(_numbered([parts.tensors for parts in each]), {"results": [parts.header for parts in each]})


def to_group_results(parts: Parts) -> list[Reply | Failure]:
    """Return what :func:`group_result_parts` was given."""
    headers = enumerate(parts.header["results"])
    return [to_result(Parts(under(f"{number}/", parts.tensors), header)) for number, header in headers]


def _numbered(parts: Sequence[Tensors]) -> Tensors:
    return {name: value for number, part in enumerate(parts) for name, value in prefixed(f"{number}/", part).items()}


class Line:
    """One end of a pipe, and the shared memory beside it, through which goes whatever fits."""

    def __init__(self, pipe: Connection, slabs: dict[bytes, Slab]) -> None:
        self.pipe, self.slabs = pipe, slabs

    def send(self, kind: bytes, parts: Parts) -> None:
        """Send a message. Each kind has memory of its own, and is sent again only when the last has been dealt with."""
        slab = self.slabs.get(kind)
        if slab is not None and slab.write(*parts):
            self.pipe.send_bytes(kind + THERE)
        else:
            self.pipe.send_bytes(kind + HERE + pack(*parts))

    def receive(self, *, copied: bool) -> tuple[bytes, Parts]:
        """Return the next message; what is not copied is good until the next message of its kind."""
        frame = self.pipe.recv_bytes()
        kind, where = frame[:1], frame[1:2]
        if where == THERE:
            return kind, Parts(*self.slabs[kind].read(copied=copied))
        return kind, Parts(*unpack(frame[2:])) if where == HERE else Parts({}, {})
