"""Tables of many clients as they are stored: without the rows of clients that have no value."""

import torch
from torch import Tensor

from cafedcl.core.arrays import Array
from cafedcl.core.client_names import MANY_CLIENTS
from cafedcl.core.tensors import Tensors
from cafedcl.federation import sparse_tables
from cafedcl.federation.sparse_tables import CONFUSION, NUMBER, ROWS, SERVER_CLIENTS

OWN = "own/"
OWN_ROUND = OWN + "round"
"""The round in which each client's own model was scored last."""
BY_CLIENT = (OWN, "notes/", "scores/own/")
"""Prefixes of the tables with a row for every client."""


def without_empty_rows(
    tables: Tensors, clients: int, *, follows: bool = False, only: int | None = None
) -> Tensors:
    """Return tables as they are stored.

    ``follows`` says that each client's accuracy under the server's model follows from the confusion
    matrix and need not be stored. If ``only`` is a round, only this round's results of own models
    are stored, since earlier ones are in the files of their rounds.
    """
    if clients < MANY_CLIENTS:
        return tables
    stored: Tensors = {NUMBER: torch.tensor([clients])}
    new: Tensor | None = None
    if only is not None and OWN_ROUND in tables:
        new = (tables[OWN_ROUND] == only).nonzero().flatten()
    for name, value in tables.items():
        if name == SERVER_CLIENTS and follows:
            continue
        if name.startswith(BY_CLIENT) and len(value) == clients:
            rows = known_rows(value)
            if new is not None and name.startswith(OWN):
                rows = new
            stored[ROWS + name] = rows
            stored[name] = value[rows]
        else:
            stored[name] = value
    return stored


def known_rows(table: Tensor) -> Tensor:
    """Return the clients with a value: not NaN, and in a table of whole numbers not −1."""
    known = ~table.isnan() if table.is_floating_point() else table >= 0
    return known.view(len(table), -1).any(1).nonzero().flatten()


def with_all_rows(tables: Tensors) -> Tensors:
    """Return stored tables with a row for every client; raises ValueError if they are damaged."""
    if NUMBER not in tables:
        return tables
    sparse = {name for name in tables if ROWS + name in tables or name.startswith(ROWS)}
    arrays = {name: tables[name].numpy() for name in sparse}
    filled = {
        name: torch.from_numpy(value) for name, value in sparse_tables.with_all_rows(arrays).items()
    }
    return {**{name: value for name, value in tables.items() if name not in sparse}, **filled}


def whole_tables(stored: Tensors, counts: Array) -> Tensors:
    """Return a round's tables as they were before they were stored; ``counts`` are the images per
    client and class.
    """
    tables = with_all_rows(stored)
    if CONFUSION not in tables:
        return tables
    server = {name: tables[name].numpy() for name in (CONFUSION, SERVER_CLIENTS) if name in tables}
    accuracy = sparse_tables.with_server_clients(server, counts)[SERVER_CLIENTS]
    return {**tables, SERVER_CLIENTS: torch.from_numpy(accuracy)}
