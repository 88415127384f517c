"""Who takes part in a round, and who of them drops out."""

import secrets

from cafedcl.config.sections import Config
from cafedcl.core.rng import stream
from cafedcl.task.checks import check_schedule


class Participants:
    """Draws the clients of every round.

    With privacy, every client takes part independently with the same probability, as the privacy
    budget assumes. Otherwise the number of clients is the same in every round.
    """

    def __init__(self, config: Config, clients: int) -> None:
        self.config = config
        self.clients = clients
        self.schedule = check_schedule(config)
        self._known: tuple[int, dict[int, int]] = (-1, {})
        """The first round of the period that `_last_replies` computed last, and its result."""

    def __call__(self, round: int) -> tuple[list[int], list[int]]:
        """Return the sampled clients, and those of them that drop out before they reply."""
        seed = self.config.run.seed
        options = self.config.federation
        sampled = self._independent(round) if self._private else self._fixed_number(round)
        lost = set(self.schedule.get(round, set()))
        if options.dropout:
            for client in sampled:
                if stream(seed, "dropout", client, round).random() < options.dropout:
                    lost.add(client)
        return sampled, [client for client in sampled if client in lost]

    def scored_in(self, round: int, *, due: bool) -> set[int]:
        """Return the clients whose own models are scored in a round.

        A client is scored in its last round before scores are ``due``, so that the scores are of
        its last model even if it is not sampled in the round in which they are due. Where the
        system's random numbers draw the clients, later rounds cannot be known: then the clients
        that reply in the round in which scores are due are scored.
        """
        if self._from_system:
            return set(range(self.clients)) if due else set()
        if due:
            return self._replying(round)
        last = self._last_replies(round)
        return {client for client, replied in last.items() if replied == round}

    def _replying(self, round: int) -> set[int]:
        sampled, dropped = self(round)
        return set(sampled) - set(dropped)

    def _last_replies(self, round: int) -> dict[int, int]:
        """Return each client's last reply in the period that ends when scores are due.

        Only clients that reply in the period are included. The answer is kept, since it is the same
        for all rounds of the period.
        """
        every = self.config.evaluate.own_every
        begin = round - round % every
        end = min(begin + every, self.config.federation.rounds)
        if self._known[0] != begin:
            found: dict[int, int] = {}
            for later in range(end - 1, begin - 1, -1):
                for client in self._replying(later):
                    found.setdefault(client, later)
                if len(found) == self.clients:
                    break
            self._known = (begin, found)
        return self._known[1]

    @property
    def _private(self) -> bool:
        return self.config.privacy.protects_clients

    @property
    def _from_system(self) -> bool:
        """Whether the drawn clients cannot be computed in advance."""
        options = self.config.privacy
        return self._private and options.from_system(own_data=self.config.at_sites)

    def _fixed_number(self, round: int) -> list[int]:
        number = self.config.federation.participants(self.clients)
        draws = stream(self.config.run.seed, "participants", round)
        return sorted(int(client) for client in draws.choice(self.clients, number, replace=False))

    def _independent(self, round: int) -> list[int]:
        share = self.config.federation.participation
        if self._from_system:
            system = secrets.SystemRandom()
            return [client for client in range(self.clients) if system.random() < share]
        draws = stream(self.config.run.seed, "participants", round).random(self.clients)
        return [int(client) for client in (draws < share).nonzero()[0]]
