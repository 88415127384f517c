"""Packed bytes in Flower's records. Free of PyTorch, because every message starts a process that
imports this.
"""

from flwr.app import Array, ArrayRecord, RecordDict

STYPE = "cafedcl.packed"
SHARED = "shared"
OWN = "own"
"""The record that is the same for every site, which Flower stores once, and the record for one
site.
"""


def wrap(parts: dict[str, bytes]) -> RecordDict:
    """Return packed parts as records; Flower names them by their content, so equal ones are stored
    once.
    """
    return RecordDict({name: ArrayRecord({"packed": _array(data)}) for name, data in parts.items()})


def unwrap(content: RecordDict, limit: int | None = None) -> dict[str, bytes]:
    """Return the parts of a message; raises ValueError for anything else, or if they are larger
    than the limit.
    """
    records = content.array_records
    if len(records) != len(content) or any(
        list(record) != ["packed"] for record in records.values()
    ):
        raise ValueError("it is not made of packed records")
    arrays = {name: record["packed"] for name, record in records.items()}
    size = sum(len(array.data) for array in arrays.values())
    if limit is not None and size > limit:
        raise ValueError(f"it has {size} bytes, more than the {limit} that are expected at most")
    if any(array.stype != STYPE for array in arrays.values()):
        raise ValueError("its records are not packed by cafedcl")
    return {name: array.data for name, array in arrays.items()}


def _array(data: bytes) -> Array:
    return Array("uint8", (len(data),), STYPE, data)
