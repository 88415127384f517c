"""Sizes that tensors are padded to."""


def power_of_two(number: int) -> int:
    """Return the next power of two, at least 1, so that a few sizes serve many numbers."""
    return 1 << max(number - 1, 0).bit_length()
