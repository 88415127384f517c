"""Messages between server and sites as packed bytes: enrol, train, survey, and the answers."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from cafedcl.config.sections import Config
from cafedcl.core.contract import TICKET, Down, Failure, Job, Reply
from cafedcl.core.tensors import Header, Tensors, pack, unpack
from cafedcl.deploy.flower.records import OWN, SHARED, MessageParts
from cafedcl.deploy.population import SiteAssignment
from cafedcl.engine.cpu import messages as wire

ENROL = "enrol"
TRAIN = "train"
SURVEY = "survey"
KEYS = "secure keys"
SHARES = "secure shares"
MASKED = "secure vector"
UNMASK = "secure unmasking"
"""The four phases of a secure sum; the third one trains."""
LONGEST_ERROR = 500
"""The most characters of a site's error: it is shown and stored in every round."""


@dataclass(frozen=True)
class Terms:
    """A run's config and, if sites have their own data, the site's assignment."""

    config: Config
    assigned: SiteAssignment | None
    run: str
    """The run's id, under which a site stores its client's memory."""
    frozen: str
    """The digest of the frozen weights; empty if all are trained."""

    def plain(self) -> Header:
        """Return the terms as plain values, the same for every site."""
        # The client's number is left out: Flower stores a message that is equal for all sites once.
        place = None if self.assigned is None else asdict(replace(self.assigned, client=0))
        plain = self.config.to_plain()
        return {"config": plain, "place": place, "run": self.run, "frozen": self.frozen}

    @classmethod
    def of(cls, plain: Header, config: Config, client: int) -> "Terms":
        """Return the terms from a request, with the config that the site accepted."""
        assigned = None
        if plain["place"] is not None:
            values: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in plain["place"].items()
            }
            assigned = SiteAssignment(**{**values, "client": client})
        return cls(config, assigned, plain["run"], plain["frozen"])


@dataclass(frozen=True)
class Request:
    """A server's request to a site."""

    kind: str
    terms: Header
    down: Down
    job: Job
    own: Header
    """The part for this site alone."""


def enrol_request(config: Config) -> bytes:
    """Return the request to enrol, which is the same for every site."""
    return pack({}, {"kind": ENROL, "round": -1, "terms": {"config": config.to_plain()}})


def shared_request(kind: str, down: Down, terms: Terms) -> bytes:
    """Return the part of a request that is the same for every site."""
    return pack(down.tensors, {"kind": kind, "round": down.round, "terms": terms.plain()})


def client_request(client: int, ticket: Tensors, evaluate: bool, **more: Any) -> bytes:
    """Return the part of a request for one site.

    ``more`` is what a phase of a secure sum needs, or why the site's last reply did not count.
    """
    return pack(ticket, {"client": client, "evaluate": evaluate, **more})


def read_request(parts: MessageParts) -> Request:
    """Return a request; raises ValueError or KeyError if it cannot be read."""
    tensors, header = unpack(parts[SHARED])
    down = Down(header["round"], tensors)
    ticket: Tensors = {}
    own: Header = {"client": -1, "evaluate": False}
    if OWN in parts:
        ticket, own = unpack(parts[OWN])
    job = Job(own["client"], down, ticket, own["evaluate"])
    return Request(header["kind"], header["terms"], down, job, own)


def answer_train(result: Reply, round: int) -> MessageParts:
    """Return the answer with a job's reply and its round."""
    return {OWN: pack({}, {"round": round}), SHARED: pack(*wire.result_message(result))}


def answer_plain(tensors: Tensors, header: Header) -> MessageParts:
    """Return the answer to a request to enrol or to survey."""
    return {OWN: pack(tensors, header)}


def answer_error(reason: str) -> MessageParts:
    """Return an answer that says why the request failed."""
    return answer_plain({}, {"error": reason})


def read_plain(parts: MessageParts) -> tuple[Tensors, Header]:
    """Return the content of an answer; raises ValueError if it is unreadable or an error."""
    if OWN not in parts:
        raise ValueError("it has no answer in it")
    tensors, header = unpack(parts[OWN])
    if not isinstance(header, dict):
        raise ValueError("it has no header")  # noqa: TRY004
    if "error" in header:
        raise ValueError(str(header["error"])[:LONGEST_ERROR])
    return tensors, header


def read_train(parts: MessageParts, client: int, round: int) -> Reply | Failure:
    """Return a site's result, or a failure; even a broken answer never raises an error."""
    try:
        _, about = read_plain(parts)
        if about.get("round") != round:
            return Failure(client, f"it answered for round {about.get('round')}, not {round}")
        result = validated_reply(wire.to_result(wire.Message(*unpack(parts[SHARED]))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Failure(client, f"its answer cannot be used: {error}")
    if result.up.client != client:
        return Failure(client, f"it answered as client {result.up.client}")
    if result.memory.keys() - {TICKET}:
        return Failure(client, "its memory is more than the ticket for it")
    return result


def validated_reply(result: Reply | Failure) -> Reply:
    """Return a reply if its plain values have the right types; raises ValueError otherwise."""
    if isinstance(result, Failure):
        raise ValueError(result.reason)  # noqa: TRY004
    up = result.up
    numbers: list[Any] = [up.seconds, *up.losses.values()]
    if not isinstance(up.client, int) or not isinstance(up.samples, int):
        raise ValueError("client and samples are not whole numbers")  # noqa: TRY004
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("losses or seconds are not numbers")
    return result
