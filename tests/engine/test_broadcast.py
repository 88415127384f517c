import torch

from cafedcl.contract import Down
from cafedcl.engine.broadcast import KEPT, Broadcast


def down(round: int, rows: int, value: float) -> Down:
    return Down(round, {"model/w": torch.zeros(3), "anchors/table": torch.full((rows, 2), value)})


def test_a_message_is_laid_where_the_last_one_of_its_shape_was() -> None:
    told = Broadcast(torch.device("cpu"), 10)
    told.tell(down(2, 3, 1.0))
    first, table = told.anchors, told.anchors["table"]
    assert list(first) == ["table"]
    assert (float(told.round), float(told.progress)) == (2.0, torch.tensor(0.2).item())
    told.tell(down(3, 5, 2.0))
    assert told.anchors is not first
    told.tell(down(4, 3, 7.0))
    assert told.anchors is first
    assert told.anchors["table"] is table
    assert table.tolist() == [[7.0, 7.0]] * 3
    assert float(told.round) == 4.0


def test_a_message_is_not_the_servers_own_tensor() -> None:
    told, message = Broadcast(torch.device("cpu"), 10), down(0, 3, 1.0)
    told.tell(message)
    told.tell(down(1, 3, 5.0))
    assert message.tensors["anchors/table"].tolist() == [[1.0, 1.0]] * 3


def test_only_the_last_few_shapes_keep_their_place() -> None:
    told = Broadcast(torch.device("cpu"), 10)
    for rows in range(1, KEPT + 3):
        told.tell(down(0, rows, 1.0))
    assert [len(place["table"]) for place in told.places.values()] == list(range(3, KEPT + 3))
    assert len(told.values()) == 2 + KEPT
