"""Who takes part in a round."""

import numpy as np
from conftest import tiny_config

from cafedcl.federation.participants import Participants

PRIVATE = {"privacy.kind": "clients", "federation.participation": 0.3}


def test_without_privacy_the_number_of_clients_is_the_same_in_every_round():
    draw = Participants(tiny_config("fedavg", {"federation.participation": 0.3}), 50)
    assert {len(draw(round)[0]) for round in range(30)} == {15}


def test_with_privacy_every_client_takes_part_independently():
    draw = Participants(tiny_config("fedavg", PRIVATE), 50)
    taken = np.zeros((400, 50))
    for round in range(400):
        taken[round, draw(round)[0]] = 1
    assert abs(taken.mean() - 0.3) < 0.01
    # The variance of a binomial number: a fixed number of clients would have none.
    assert abs(taken.sum(1).var() - 50 * 0.3 * 0.7) < 2.5
    assert draw(7) == draw(7)


def test_nobody_can_predict_participants_who_come_from_the_operating_system():
    draw = Participants(tiny_config("fedavg", {**PRIVATE, "privacy.randomness": "system"}), 500)
    first, second = draw(0)[0], draw(0)[0]
    assert first != second
    assert 90 < len(first) < 210
