import torch

from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda.broadcast import KEPT, Broadcast


def message(rows: int, value: float) -> Tensors:
    return {"model/w": torch.zeros(3), "anchors/table": torch.full((rows, 2), value)}


def test_a_message_is_laid_where_the_last_one_of_its_shape_was() -> None:
    broadcast = Broadcast(torch.device("cpu"), 10)
    broadcast.lay(message(3, 1.0))
    broadcast.date(2)
    first, table = broadcast.anchors, broadcast.anchors["table"]
    assert list(first) == ["table"]
    assert (float(broadcast.round), float(broadcast.progress)) == (2.0, torch.tensor(0.2).item())
    broadcast.lay(message(5, 2.0))
    broadcast.date(3)
    assert broadcast.anchors is not first
    broadcast.lay(message(3, 7.0))
    assert float(broadcast.round) == 3.0
    broadcast.date(4)
    assert broadcast.anchors is first
    assert broadcast.anchors["table"] is table
    assert table.tolist() == [[7.0, 7.0]] * 3
    assert float(broadcast.round) == 4.0


def test_a_message_is_not_the_servers_own_tensor() -> None:
    broadcast, first = Broadcast(torch.device("cpu"), 10), message(3, 1.0)
    broadcast.lay(first)
    broadcast.lay(message(3, 5.0))
    assert first["anchors/table"].tolist() == [[1.0, 1.0]] * 3


def test_only_the_last_few_shapes_keep_their_place() -> None:
    broadcast = Broadcast(torch.device("cpu"), 10)
    for rows in range(1, KEPT + 3):
        broadcast.lay(message(rows, 1.0))
    assert [len(place["table"]) for place in broadcast.slices.values()] == list(range(3, KEPT + 3))
    assert len(broadcast.values()) == 2 + KEPT
