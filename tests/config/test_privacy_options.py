"""Privacy in its short form, and ε in words."""

from dataclasses import asdict

import pytest

from cafedcl.config.privacy_options import (
    PrivacyOptions,
    replaced_privacy,
    short_privacy,
    shown_epsilon,
)
from cafedcl.core.errors import CafedclError
from cafedcl.task.resolve import resolve


@pytest.mark.parametrize("text", ["none", "clients", "clients:2.5", "clients:0.8,budget=8.0"])
def test_the_short_form_is_read_and_written_alike(text):
    assert short_privacy(asdict(PrivacyOptions(**replaced_privacy({}, text)))) == text


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"noise": 2.0}, "the privacy 'none' does not use it"),
        ({"kind": "client"}, "privacy.kind"),
        ({"kind": "clients", "noise": 0.0}, "it must be at least 0.1"),
        ({"kind": "clients", "delta": 0.5}, "at most 0.1"),
    ],
)
def test_a_wrong_option_is_refused(table, message):
    with pytest.raises(CafedclError, match=message):
        resolve({"method": {"name": "fedavg"}, "privacy": table})


def test_a_shown_epsilon_is_rounded_up():
    assert shown_epsilon({"epsilon": 2.301}) == "ε 2.31"
    assert shown_epsilon({}) == ""
