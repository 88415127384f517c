"""Who takes part in a round, and who of them drops out."""

import secrets

from cafedcl.config.sections import Config
from cafedcl.core.rng import stream
from cafedcl.task.checks import check_schedule


class Participants:
    """Draws the clients of every round.

    With privacy, every client takes part with the same probability, whoever else does: that is what
    the privacy budget is computed for. Otherwise the number of clients is the same in every round.
    """

    def __init__(self, config: Config, clients: int) -> None:
        self.config = config
        self.clients = clients
        self.schedule = check_schedule(config)

    def __call__(self, round: int) -> tuple[list[int], list[int]]:
        """Return the clients that are asked, and those of them that drop out before they reply."""
        seed = self.config.run.seed
        options = self.config.federation
        sampled = self._independent(round) if self._private else self._fixed_number(round)
        lost = set(self.schedule.get(round, set()))
        if options.dropout:
            for client in sampled:
                if stream(seed, "dropout", client, round).random() < options.dropout:
                    lost.add(client)
        return sampled, [client for client in sampled if client in lost]

    @property
    def _private(self) -> bool:
        return self.config.privacy.protects_clients

    def _fixed_number(self, round: int) -> list[int]:
        number = self.config.federation.participants(self.clients)
        draws = stream(self.config.run.seed, "participants", round)
        return sorted(int(client) for client in draws.choice(self.clients, number, replace=False))

    def _independent(self, round: int) -> list[int]:
        share = self.config.federation.participation
        if self.config.privacy.from_system(own_data=self.config.at_sites):
            system = secrets.SystemRandom()
            return [client for client in range(self.clients) if system.random() < share]
        draws = stream(self.config.run.seed, "participants", round).random(self.clients)
        return [int(client) for client in (draws < share).nonzero()[0]]
