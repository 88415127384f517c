"""Attacks and defences in their short form."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from cafedcl.config.trust_options import (
    AttackOptions,
    DefenceOptions,
    replaced_attack,
    replaced_defence,
    short_attack,
    short_defence,
    trust_words,
)


@pytest.mark.parametrize(
    ("text", "section", "read", "written"),
    [
        ("none", AttackOptions, replaced_attack, short_attack),
        ("label-flip:2", AttackOptions, replaced_attack, short_attack),
        ("sign-flip:4,claim=most", AttackOptions, replaced_attack, short_attack),
        ("scale:1,factor=-3.0,since=7", AttackOptions, replaced_attack, short_attack),
        ("none", DefenceOptions, replaced_defence, short_defence),
        ("peers", DefenceOptions, replaced_defence, short_defence),
        ("clip:1.5,cross_check=true", DefenceOptions, replaced_defence, short_defence),
        ("trimmed-mean:0.3", DefenceOptions, replaced_defence, short_defence),
    ],
)
def test_the_short_form_is_read_and_written_alike(
    text: str,
    section: Callable[..., Any],
    read: Callable[[Mapping[str, Any], str], dict[str, Any]],
    written: Callable[[Mapping[str, Any]], str],
) -> None:
    assert written(asdict(section(**read({}, text)))) == text


def test_attack_and_defence_in_words_are_empty_where_there_are_none() -> None:
    assert trust_words("none", "none", "none") == ""
    assert trust_words("none", "peers", "none") == "defence peers"
    assert trust_words("swap:4", "clip", "none") == "attack swap:4, defence clip"
    assert trust_words("none", "none", "clients:2.0") == "privacy clients:2.0"
