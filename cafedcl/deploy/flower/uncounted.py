"""Replies that do not count, and why: the next request informs their sites."""

from cafedcl.core.contract import Failure
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation


class UncountedReplies(Callback):
    """Remembers for every client why its last reply did not count.

    Only the server knows, but the site's operator has to fix it. Sites do not learn what a defence
    leaves out: a malicious client could try until it passes.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def client_done(self, federation: Federation, client: int, failure: Failure | None) -> None:  # noqa: ARG002
        """Remember why a reply did not count."""
        if failure is None:
            self.reasons.pop(client, None)
        else:
            self.reasons[client] = failure.reason

    def round_done(self, federation: Federation, record: Record) -> None:  # noqa: ARG002
        """Remember if a round counted for no client."""
        if record.reason:
            replied = set(record.participants) - set(record.dropped) - self.reasons.keys()
            self.reasons |= dict.fromkeys(replied, f"the round was skipped: {record.reason}")

    def told(self, client: int) -> dict[str, str]:
        """Return what a request tells a client about its last reply: nothing if it counted."""
        reason = self.reasons.get(client)
        return {} if reason is None else {"uncounted": reason}
