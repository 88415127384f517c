"""Jobs and results as packed bytes, for worker processes."""

from cafedcl.contract import Down, Failure, Job, Reply, Up
from cafedcl.pack import pack, prefixed, under, unpack


def pack_down(down: Down) -> bytes:
    """Return what the server sends, as bytes; it is the same for every client of a round."""
    return pack(down.tensors, {"kind": "down", "round": down.round})


def unpack_down(data: bytes) -> Down:
    """Return what :func:`pack_down` was given."""
    tensors, header = unpack(data)
    return Down(header["round"], tensors)


def pack_job(job: Job) -> bytes:
    """Return a job without its Down, which travels once per round."""
    return pack(job.memory, {"kind": "job", "client": job.client, "evaluate": job.evaluate})


def unpack_job(data: bytes, down: Down) -> Job:
    """Return what :func:`pack_job` was given, with the round's Down."""
    memory, header = unpack(data)
    return Job(header["client"], down, memory, header["evaluate"])


def pack_result(result: Reply | Failure) -> bytes:
    """Return a finished job as bytes."""
    if isinstance(result, Failure):
        return pack({}, {"client": result.client, "reason": result.reason})
    up = result.up
    header = {"client": up.client, "samples": up.samples, "losses": up.losses, "seconds": up.seconds}
    parts = {"up/": up.tensors, "notes/": up.notes, "memory/": result.memory, "hits/": result.hits}
    return pack({k: v for prefix, part in parts.items() for k, v in prefixed(prefix, part).items()}, header)


def unpack_result(data: bytes) -> Reply | Failure:
    """Return what :func:`pack_result` was given."""
    tensors, header = unpack(data)
    if "reason" in header:
        return Failure(header["client"], header["reason"])
    up = Up(tensors=under("up/", tensors), notes=under("notes/", tensors), **header)
    return Reply(up, under("memory/", tensors), under("hits/", tensors))
