"""Images that are in both training and test: scores would then measure memorisation."""

from collections.abc import Callable, Iterable
from hashlib import blake2b

from cafedcl.core.arrays import Bytes

SHOWN = 3
"""How many pairs a message names."""


def find_duplicates(train: Iterable[Bytes], test: Iterable[Bytes]) -> list[tuple[int, int]]:
    """Return the numbers of test images that equal a training image, with that image's number."""
    seen: dict[bytes, int] = {}
    for row, image in enumerate(train):
        seen.setdefault(_digest(image), row)
    pairs = ((row, seen.get(_digest(image))) for row, image in enumerate(test))
    return [(row, twin) for row, twin in pairs if twin is not None]


def _digest(image: Bytes) -> bytes:
    return blake2b(image.tobytes(), digest_size=16).digest()


def duplicates_remark(
    where: object,
    train: Iterable[Bytes],
    test: Iterable[Bytes],
    train_name: Callable[[int], str],
    test_name: Callable[[int], str],
) -> list[str]:
    """Return a remark on images that are in training and in test, or nothing."""
    pairs = find_duplicates(train, test)
    if not pairs:
        return []
    named = ", ".join(f"{test_name(row)} = {train_name(twin)}" for row, twin in pairs[:SHOWN])
    more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    return [
        f"{where}: {len(pairs)} test images are in the training set too: {named}{more}; "
        "scores will be too high, so remove one of each pair"
    ]
