"""Packed bytes in Flower's records."""

from flwr.app import Array, ArrayRecord, RecordDict

MessageParts = dict[str, bytes]
"""A message: its parts by name."""
STYPE = "cafedcl.packed"
SHARED = "shared"
"""Name of the part that is the same for every site; Flower stores it once."""
OWN = "own"
"""Name of the part for one site."""


def wrap(parts: MessageParts) -> RecordDict:
    """Return a message's parts as records; Flower stores equal records once."""
    return RecordDict({name: ArrayRecord({"packed": _array(data)}) for name, data in parts.items()})


def unwrap(content: RecordDict, limit: int | None = None) -> MessageParts:
    """Return a message's parts; raises ValueError for other content, or beyond ``limit`` bytes."""
    records = content.array_records
    all_packed = all(list(record) == ["packed"] for record in records.values())
    if len(records) != len(content) or not all_packed:
        raise ValueError("its records are not packed ones")
    arrays = {name: record["packed"] for name, record in records.items()}
    size = sum(len(array.data) for array in arrays.values())
    if limit is not None and size > limit:
        raise ValueError(f"it has {size} bytes, more than the limit of {limit}")
    if any(array.stype != STYPE for array in arrays.values()):
        raise ValueError("its records were not packed by cafedcl")
    return {name: array.data for name, array in arrays.items()}


def _array(data: bytes) -> Array:
    return Array("uint8", (len(data),), STYPE, data)
