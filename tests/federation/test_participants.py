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


def test_clients_are_scored_in_their_last_round_before_scores_are_due():
    """In rounds 0 to 9 with scores due in 3, 7 and 9 (counted from 0), some drop out."""
    settings = {
        "federation.participation": 0.3,
        "federation.dropout": 0.3,
        "federation.rounds": 10,
        "evaluate.own_every": 4,
    }
    draw = Participants(tiny_config("fedavg", settings), 20)
    replied = []
    for round in range(10):
        sampled, dropped = draw(round)
        replied.append(set(sampled) - set(dropped))
    for round in range(10):
        due = min(later for later in (3, 7, 9) if later >= round)
        later = set().union(*replied[round + 1 : due + 1])
        assert draw.scored_in(round, due=round == due) == replied[round] - later
    # A run that ends early has its last scores then.
    assert draw.scored_in(5, due=True) == replied[5]


def test_where_later_rounds_are_unknown_those_are_scored_who_reply_when_scores_are_due():
    draw = Participants(tiny_config("fedavg", {**PRIVATE, "privacy.randomness": "system"}), 5)
    assert draw.scored_in(0, due=True) == set(range(5))
    assert draw.scored_in(0, due=False) == set()
