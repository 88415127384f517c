import torch

from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda.broadcast import KEPT, Broadcast


def message(rows: int, value: float) -> Tensors:
    return {"model/w": torch.zeros(3), "anchors/table": torch.full((rows, 2), value)}


def test_a_message_is_laid_where_the_last_one_of_its_shape_was() -> None:
    told = Broadcast(torch.device("cpu"), 10)
    told.lay(message(3, 1.0))
    told.date(2)
    first, table = told.anchors, told.anchors["table"]
    assert list(first) == ["table"]
    assert (float(told.round), float(told.progress)) == (2.0, torch.tensor(0.2).item())
    told.lay(message(5, 2.0))
    told.date(3)
    assert told.anchors is not first
    told.lay(message(3, 7.0))
    assert float(told.round) == 3.0
    told.date(4)
    assert told.anchors is first
    assert told.anchors["table"] is table
    assert table.tolist() == [[7.0, 7.0]] * 3
    assert float(told.round) == 4.0


def test_a_message_is_not_the_servers_own_tensor() -> None:
    told, first = Broadcast(torch.device("cpu"), 10), message(3, 1.0)
    told.lay(first)
    told.lay(message(3, 5.0))
    assert first["anchors/table"].tolist() == [[1.0, 1.0]] * 3


def test_only_the_last_few_shapes_keep_their_place() -> None:
    told = Broadcast(torch.device("cpu"), 10)
    for rows in range(1, KEPT + 3):
        told.lay(message(rows, 1.0))
    assert [len(place["table"]) for place in told.places.values()] == list(range(3, KEPT + 3))
    assert len(told.values()) == 2 + KEPT
