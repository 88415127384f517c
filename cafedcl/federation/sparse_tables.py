"""Stored tables that lack the rows of clients without a value, read without PyTorch.

If there are many clients, few of them take part in a round. Their tables would fill the disk with
NaN, so from `MANY_CLIENTS` on only rows with values are written (`federation.sparse_writing`).
Files of smaller federations hold whole tables.
"""

from collections.abc import Mapping

import numpy as np

from cafedcl.core.arrays import Array
from cafedcl.core.client_names import MANY_CLIENTS

ROWS = "rows/"
"""Prefix of the entries that say which clients a table has."""
NUMBER = ROWS + "number"
"""The entry with the number of all clients."""
SERVER_CLIENTS = "server/clients"
CONFUSION = "server/confusion"


def with_all_rows(tables: Mapping[str, Array]) -> dict[str, Array]:
    """Return tables with a row for every client; raises ValueError if they are damaged."""
    whole = {name: value for name, value in tables.items() if not name.startswith(ROWS)}
    for name, value in whole.items():
        if ROWS + name in tables:
            whole[name] = filled(name, value, tables[ROWS + name], tables[NUMBER])
    return whole


def filled(name: str, values: Array, rows: Array, number: Array) -> Array:
    """Return a table of all clients, with NaN or −1 for those without a row."""
    if number.shape != (1,) or number.dtype != np.int64 or rows.dtype != np.int64:
        raise ValueError(f"{name}: its rows are not numbers of clients")
    clients = int(number[0])
    if rows.shape != values.shape[:1] or ((rows < 0) | (rows >= clients)).any():
        raise ValueError(f"{name}: its rows are not those of {clients} clients")
    empty = np.nan if values.dtype.kind == "f" else -1
    table = np.full((clients, *values.shape[1:]), empty, dtype=values.dtype)
    table[rows] = values
    return table


def with_server_clients(tables: dict[str, Array], counts: Array) -> dict[str, Array]:
    """Return tables with each client's accuracy under the server's model.

    Where it is not stored, it follows from the confusion matrix: it is
    `functional.metrics.client_accuracy`, without PyTorch.
    """
    if SERVER_CLIENTS in tables or CONFUSION not in tables or len(counts) < MANY_CLIENTS:
        return tables
    confusion = tables[CONFUSION]
    if confusion.shape != (counts.shape[1],) * 2:
        raise ValueError(f"{CONFUSION}: a table of {counts.shape[1]} classes is expected")
    tested = confusion.sum(1)
    recall = np.divide(confusion.diagonal(), tested, where=tested > 0, out=np.zeros(len(tested)))
    share = counts * (tested > 0)
    with np.errstate(invalid="ignore"):
        accuracy = (share * recall).sum(1) / share.sum(1)
    return {**tables, SERVER_CLIENTS: accuracy.astype(np.float32)}
