import torch

from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda.broadcast import SHAPES_KEPT, Broadcast


def message(rows: int, value: float) -> Tensors:
    return {"model/w": torch.zeros(3), "anchors/table": torch.full((rows, 2), value)}


def test_a_message_is_laid_where_the_last_one_of_its_shape_was() -> None:
    broadcast = Broadcast(torch.device("cpu"), 10)
    broadcast.place(message(3, 1.0))
    broadcast.set_round(2)
    first, table = broadcast.anchors, broadcast.anchors["table"]
    assert list(first) == ["table"]
    assert (float(broadcast.round), float(broadcast.progress)) == (2.0, torch.tensor(0.2).item())
    broadcast.place(message(5, 2.0))
    broadcast.set_round(3)
    assert broadcast.anchors is not first
    broadcast.place(message(3, 7.0))
    assert float(broadcast.round) == 3.0
    broadcast.set_round(4)
    assert broadcast.anchors is first
    assert broadcast.anchors["table"] is table
    assert table.tolist() == [[7.0, 7.0]] * 3
    assert float(broadcast.round) == 4.0


def test_a_message_is_not_the_servers_own_tensor() -> None:
    broadcast, first = Broadcast(torch.device("cpu"), 10), message(3, 1.0)
    broadcast.place(first)
    broadcast.place(message(3, 5.0))
    assert first["anchors/table"].tolist() == [[1.0, 1.0]] * 3


def test_only_the_last_few_shapes_keep_their_place() -> None:
    broadcast = Broadcast(torch.device("cpu"), 10)
    for rows in range(1, SHAPES_KEPT + 3):
        broadcast.place(message(rows, 1.0))
    assert [len(place["table"]) for place in broadcast.by_shape.values()] == list(
        range(3, SHAPES_KEPT + 3)
    )
    assert len(broadcast.values()) == 2 + SHAPES_KEPT
