"""ε is the library's for the same events."""

import subprocess
import sys

import pytest

from cafedcl.config.privacy_options import PrivacyOptions
from cafedcl.core.errors import CafedclError
from cafedcl.federation.accounting import Accountant


@pytest.mark.parametrize(
    ("kind", "noise", "probability", "steps"),
    [("rdp", 1.3, 1.0, 7), ("rdp", 2.0, 0.25, 3), ("pld", 3.0, 1.0, 5)],
)
def test_epsilon_is_the_librarys_for_the_same_events(kind, noise, probability, steps):
    # Imported here, because it takes seconds in every process that collects tests.
    import dp_accounting
    from dp_accounting import pld, rdp

    ours = Accountant(PrivacyOptions(noise=noise, accountant=kind), "privacy.kind")
    theirs = {"rdp": rdp.RdpAccountant, "pld": pld.PLDAccountant}[kind]()
    for _ in range(steps):
        event = dp_accounting.GaussianDpEvent(noise)
        theirs.compose(
            event if probability == 1 else dp_accounting.PoissonSampledDpEvent(probability, event)
        )
    assert ours.epsilon(probability, steps) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    assert ours.epsilon(probability, 0) == 0.0


def test_sampling_clients_costs_less_than_asking_all():
    accountant = Accountant(PrivacyOptions(noise=2.0), "privacy.kind")
    assert accountant.epsilon(0.1, 5) < accountant.epsilon(1.0, 5) / 3


def test_without_the_library_there_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(CafedclError, match="dp_accounting is not installed; install") as error:
        Accountant(PrivacyOptions(), "privacy.kind = clients")
    assert "\n" not in str(error.value)


def test_other_libraries_do_not_begin_to_print_their_messages():
    """In a process of its own: pytest gives the root logger handlers."""
    code = (
        "import logging\n"
        "from cafedcl.config.privacy_options import PrivacyOptions\n"
        "from cafedcl.federation.accounting import Accountant\n"
        "Accountant(PrivacyOptions(noise=1.0), 'privacy.kind').epsilon(0.1, 100)\n"
        "logging.getLogger('other').warning('a message')\n"
        "assert not logging.root.handlers\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert "WARNING:other" not in ran.stderr
