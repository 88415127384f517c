"""The numbers of the page on privacy are those of the library, and of the run that stands there."""

from pathlib import Path

from cafedcl.federation.rounds import Federation
from cafedcl.task.resolve import resolve

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


def test_little_noise_ends_the_run_of_the_page() -> None:
    command = "cafedcl run --method fedavg --privacy records:3.0,budget=8 --rounds 30"
    assert command in PAGE
    privacy = {"kind": "records", "noise": 1.0, "budget": 8.0}
    with Federation(resolve({"method": {"name": "fedavg"}, "privacy": privacy})) as federation:
        first, second = (
            federation.privacy.epsilon(federation.state, 0, rounds) for rounds in (1, 2)
        )
    assert first < 8 < second
    assert f"would end after its first round, with an ε of {first:.1f}." in PAGE
