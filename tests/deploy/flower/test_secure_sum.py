"""Secure sums: right in spite of drop-outs in every phase, and no single vector to be seen."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from cafedcl.deploy.flower.secure_sum import (
    SecureMember,
    quantised,
    scale,
    sum_of,
    threshold,
    unmasked_sum,
)

SIZE = 2000


def vectors(members, seed=0):
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((members, SIZE))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def protocol(inputs, lost_before_shares=(), lost_before_masks=(), lost_before_unmasking=()):
    """Run the protocol; return the sum and the server's whole view."""
    members = {client: SecureMember(client) for client in range(len(inputs))}
    keys = {client: member.public for client, member in members.items()}
    second = [client for client in members if client not in lost_before_shares]
    tokens = {client: members[client].shares(keys) for client in second}
    third = [client for client in second if client not in lost_before_masks]
    masked = {
        client: members[client].masked(
            inputs[client], {other: tokens[other][client] for other in second if other != client}
        )
        for client in third
    }
    dropped = [client for client in second if client not in third]
    last = [client for client in third if client not in lost_before_unmasking]
    shares = {client: members[client].unmask(third, dropped) for client in last}
    total = unmasked_sum(masked, dropped, keys, shares)
    return total, third, {"keys": keys, "tokens": tokens, "masked": masked, "shares": shares}


@pytest.mark.parametrize(
    "lost",
    [
        {},
        {"lost_before_shares": [1]},
        {"lost_before_masks": [0]},
        {"lost_before_unmasking": [3]},
        {"lost_before_shares": [4], "lost_before_masks": [2]},
    ],
)
def test_the_sum_is_that_of_the_sites_that_stayed(lost):
    inputs = vectors(7)
    total, stayed, _ = protocol(inputs, **lost)
    assert np.abs(total - inputs[stayed].sum(0)).max() < 7 / scale(7) + 1e-5


def test_too_many_drop_outs_end_the_sum_without_revealing_anything():
    with pytest.raises(ValueError, match="too few"):
        protocol(vectors(6), lost_before_unmasking=[0, 1])
    with pytest.raises(ValueError, match="must not be unmasked"):
        protocol(vectors(6), lost_before_masks=[0, 1])


def test_no_single_reply_can_be_told_from_random_numbers():
    """Two inputs that could not differ more give masked vectors with the same distribution."""
    zeros = np.zeros((4, SIZE))
    ones = np.full((4, SIZE), SIZE**-0.5)
    for inputs in (zeros, ones):
        _, _, view = protocol(inputs)
        for masked in view["masked"].values():
            high = masked >> np.uint32(28)
            counts = np.bincount(high, minlength=16)
            chi_squared = ((counts - SIZE / 16) ** 2 / (SIZE / 16)).sum()
            # 15 degrees of freedom: beyond 50 once in 100,000 times.
            assert chi_squared < 50
            assert len(np.unique(masked)) > 0.999 * SIZE
    # The same input twice gives replies that have nothing in common.
    one, other = (protocol(ones)[2]["masked"][0] for _ in range(2))
    assert (one == other).mean() < 0.01
    # Of the survivors, the server has shares of their own masks, never of the keys of pairs.
    _, stayed, view = protocol(ones, lost_before_masks=[2])
    revealed = {client for given in view["shares"].values() for client in given}
    assert revealed == {0, 1, 2, 3}
    assert 2 not in stayed


def test_a_server_that_asks_for_both_secrets_of_a_site_is_refused():
    members = {client: SecureMember(client) for client in range(4)}
    keys = {client: member.public for client, member in members.items()}
    tokens = {client: member.shares(keys) for client, member in members.items()}
    for client, member in members.items():
        mine = {other: tokens[other][client] for other in members if other != client}
        member.masked(np.zeros(3), mine)
    member = members[0]
    for survivors, dropped in (([0, 1, 2, 3], [3]), ([0, 1], [2, 3]), ([1, 2, 3], [0])):
        with pytest.raises(ValueError, match="must not be unmasked"):
            member.unmask(survivors, dropped)
    member.unmask([0, 1, 2], [3])
    with pytest.raises(ValueError, match="must not be unmasked"):
        member.unmask([0, 1, 2, 3], [])


def test_two_sites_are_too_few_and_foreign_keys_are_refused():
    one, other = SecureMember(0), SecureMember(1)
    with pytest.raises(ValueError, match="at least 3 sites"):
        one.shares({0: one.public, 1: other.public})
    with pytest.raises(ValueError, match="not the keys of this sum"):
        one.shares({0: other.public, 1: other.public, 2: other.public})


def test_rounding_keeps_the_norm_within_its_bound():
    vector = vectors(1)[0]
    for members in (3, 1000, 100_000):
        whole = sum_of(quantised(vector, members), members)
        assert np.linalg.norm(whole) <= 1
        assert np.abs(whole - vector).max() < 1e-2
    assert [threshold(members) for members in (3, 4, 6, 20)] == [3, 3, 5, 14]
