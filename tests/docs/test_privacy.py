"""The numbers of the page on privacy are those of the library, and of the run that stands there."""

from pathlib import Path

import pytest

from cafedcl import api

PAGE = " ".join(
    (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8").split()
)
DELTA = 1e-5


def test_little_noise_protects_nobody() -> None:
    # Imported here, because it takes seconds in every process that collects tests.
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(0.1), 10)
    epsilon = accountant.get_epsilon(DELTA)
    assert f"(`--set privacy.noise=0.1`), ε is {epsilon:.0f} after ten rounds" in PAGE


@pytest.mark.slow
def test_little_noise_ends_the_run_of_the_page() -> None:
    command = "cafedcl run --method fedavg --privacy records:3.0,budget=8 --rounds 30"
    assert command in PAGE
    settings = {
        "privacy.kind": "records",
        "privacy.noise": 1.0,
        "privacy.budget": 8.0,
        "engine.workers": 1,
    }
    run = api.run("fedavg", rounds=30, settings=settings)
    assert len(run.records) == 1
    epsilon = run.records[0]["privacy"]["epsilon"]
    assert f"would end after its first round, with an ε of {epsilon:.1f}." in PAGE
