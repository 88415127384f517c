"""Names of classes, clients and groups that look alike: most likely one is mistyped."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations

from cafedcl.core.errors import CafedclError

LIKENESS = 0.8
"""Similarity, from 0 to 1, from which two names may mean the same: benign and bening have 0.83."""
MOST_COMPARED = 200
"""With more classes, comparing all pairs would take long, and names are not typed by hand."""
SHORTEST = 4
"""Shorter names are alike by chance."""
MISSING = {"nan", "none", "null", "na", "n/a"}
"""What programs write for a value that is missing."""
WHOLE_NUMBER = re.compile(r"0*(\d+)(?:\.0*)?")


def as_it_looks(name: str) -> str:
    """Return a name without what nobody sees or means: how accents are encoded, repeated blanks,
    and the leading zeros and empty decimals of a whole number.
    """
    plain = without_blanks(name)
    number = WHOLE_NUMBER.fullmatch(plain)
    return number[1] if number else plain


def without_blanks(name: str) -> str:
    """Return a name with single blanks and with its accents encoded in one way."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def refuse_similar(where: object, what: str, names: Sequence[str]) -> None:
    """Refuse names of classes or clients that look the same; most likely a typing error.

    Clients' names must also differ by more than upper and lower case.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = as_it_looks(name)
        if what == "client":
            key = key.casefold()
        other = seen.setdefault(key, name)
        if other == name:
            continue
        difference = "case or blanks" if what == "client" else "blanks"
        if WHOLE_NUMBER.fullmatch(key) and without_blanks(other) != without_blanks(name):
            difference = "leading zeros or decimals"
        if unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", name):
            difference = "how their accents are encoded (Unicode NFC or NFD)"
        raise CafedclError(
            f"{where}: the {what} names '{other}' and '{name}' differ only by {difference}; "
            "rename one of them"
        )


def alike_groups(where: object, kind: str, groups: Iterable[str]) -> list[str]:
    """Return remarks on groups whose names differ only in looks, such as P1 and p1, or 7 and 07,
    and on a group whose name says that there is none.

    The former count as two, so that images of one patient may be in training and in test.
    """
    images = Counter(groups)
    remarks = [
        f"{where}: {number} images have '{name}' as their {kind}, and count as one {kind}; if it "
        "is unknown, give each image a value of its own"
        for name, number in sorted(images.items())
        if number > 1 and name.strip().casefold() in MISSING
    ]
    seen: dict[str, str] = {}
    for name in sorted(images):
        other = seen.setdefault(as_it_looks(name).casefold(), name)
        if other != name:
            remarks.append(
                f"{where}: values of {kind} '{other}' and '{name}' differ only by case, blanks, "
                "accents or leading zeros and count as two; write them alike if they are one"
            )
            break
    return remarks


def alike_classes(where: object, holders: Mapping[str, Collection[str]]) -> list[str]:
    """Return a remark on two classes that may be one; ``holders`` are the clients that have each.

    Their names differ only by case, or are similar and no client has both.
    """
    seen: dict[str, str] = {}
    for name in sorted(holders):
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            return [_one_or_two(where, holders, other, name)]
    if len(holders) <= MOST_COMPARED:
        for one, other in combinations(sorted(holders), 2):
            if _apart(holders[one], holders[other]) and _similar(one, other):
                return [_one_or_two(where, holders, one, other)]
    return []


def _one_or_two(where: object, holders: Mapping[str, Collection[str]], one: str, other: str) -> str:
    found = " and ".join(_held(name, holders[name]) for name in (one, other))
    return f"{where}: the classes {found} count as two; name them alike if they are one"


def _similar(one: str, other: str) -> bool:
    both = one.casefold(), other.casefold()
    # Numbered classes, such as grade 1 and grade 2, are alike on purpose.
    if any(len(name) < SHORTEST or any(map(str.isdigit, name)) for name in both):
        return False
    # The first letter is rarely mistyped, and a prefix changes the meaning: normal and abnormal.
    if one.casefold()[0] != other.casefold()[0]:
        return False
    return SequenceMatcher(None, *both).ratio() >= LIKENESS


def _apart(one: Collection[str], other: Collection[str]) -> bool:
    return bool(one) and bool(other) and not set(one) & set(other)


def _held(name: str, clients: Collection[str]) -> str:
    few = sorted(clients)[:3]
    more = ", …" if len(clients) > len(few) else ""
    return f"'{name}' ({', '.join(few)}{more})" if few else f"'{name}'"
