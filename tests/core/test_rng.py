from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cafedcl.core.rng import stream, torch_stream

ADDRESSES = st.tuples(
    st.integers(0, 2**63 - 1),
    st.text(max_size=8),
    st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
)


def draw(address):
    seed, purpose, keys = address
    return stream(seed, purpose, *keys).integers(0, 2**63, 4).tolist()


@given(st.lists(ADDRESSES, min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_a_stream_does_not_depend_on_what_was_drawn_before(addresses, random):
    first = {address: draw(address) for address in addresses}
    shuffled = addresses[:]
    random.shuffle(shuffled)
    assert {address: draw(address) for address in shuffled} == first


@given(ADDRESSES, ADDRESSES)
@settings(max_examples=100)
def test_streams_are_equal_only_where_their_addresses_are(one, other):
    assert (draw(one) == draw(other)) == (one == other)


@pytest.mark.parametrize(
    "other",
    [
        (1, "batches", (3, 1)),
        (0, "dropout", (3, 1)),
        (0, "batches", (1, 3)),
        (0, "batches", (3,)),
        (0, "batches", ()),
    ],
)
def test_seed_purpose_and_every_key_make_a_stream_of_their_own(other):
    assert draw(other) != draw((0, "batches", (3, 1)))


def test_a_trailing_zero_key_makes_another_stream():
    assert draw((0, "batches", (3, 0))) != draw((0, "batches", (3,)))


def test_the_address_scheme_is_numpys_so_that_old_seeds_keep_their_numbers():
    sequence = np.random.SeedSequence(7, spawn_key=(crc32(b"batches"), 3, 1))
    expected = np.random.Generator(np.random.PCG64(sequence)).standard_normal(5)
    assert stream(7, "batches", 3, 1).standard_normal(5).tolist() == expected.tolist()


NUMBERS = st.integers(0, 2**32 - 1) | st.integers(2**32, 2**70)


@given(NUMBERS, st.text(max_size=8), st.lists(NUMBERS, max_size=4))
@example(0, "", [])
@example(2**32 - 1, "batches", [2**32 - 1, 0])
@example(2**32, "batches", [0])
@example(0, "batches", [2**32])
@settings(max_examples=100)
def test_numbers_of_any_size_are_numpys_seeds_and_spawn_keys(seed, purpose, keys):
    sequence = np.random.SeedSequence(seed, spawn_key=(crc32(purpose.encode()), *keys))
    expected = np.random.default_rng(sequence).integers(0, 2**63, 8)
    assert stream(seed, purpose, *keys).integers(0, 2**63, 8).tolist() == expected.tolist()


def test_torch_stream_gives_the_same_numbers_whatever_the_global_generator_did():
    torch.manual_seed(1)
    with torch_stream(0, "model"):
        first = torch.randn(4)
    torch.manual_seed(2)
    torch.randn(100)
    with torch_stream(0, "model"):
        second = torch.randn(4)
    with torch_stream(0, "method"):
        other = torch.randn(4)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_torch_stream_puts_the_global_generator_back():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    with torch_stream(0, "model"):
        torch.randn(10)
    assert torch.equal(torch.randn(3), expected)


def test_torch_stream_puts_the_global_generator_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="inside"), torch_stream(0, "model"):  # noqa: PT012
        torch.randn(10)
        raise RuntimeError("inside")
    assert torch.equal(torch.get_rng_state(), before)
