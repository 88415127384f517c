"""What server and sites say to each other, as packed bytes: enrol, train, survey, and the answers."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Failure, Job, Reply
from cafedcl.core.tensors import Header, Tensors, pack, unpack
from cafedcl.deploy.flower.records import OWN, SHARED
from cafedcl.deploy.population import SiteAssignment
from cafedcl.engine.cpu import messages as wire

Parts = dict[str, bytes]
ENROL = "enrol"
TRAIN = "train"
SURVEY = "survey"


@dataclass(frozen=True)
class Terms:
    """What a run asks of every site: its config, and with sites' own data the places (all but the
    client's number).
    """

    config: Config
    place: SiteAssignment | None
    run: str
    """By which a site knows what it kept for this run."""

    def plain(self) -> Header:
        """Return the terms as plain values."""
        place = None if self.place is None else asdict(replace(self.place, client=0))
        return {"config": self.config.to_plain(), "place": place, "run": self.run}

    @classmethod
    def of(cls, plain: Header, config: Config, client: int) -> "Terms":
        """Return the terms that a site was sent, with the config as the site takes it."""
        place = plain["place"]
        if place is not None:
            values: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in place.items()
            }
            place = SiteAssignment(**{**values, "client": client})
        return cls(config, place, plain["run"])


@dataclass(frozen=True)
class Request:
    """What a site is asked to do."""

    kind: str
    terms: Header
    down: Down
    job: Job


def ask_enrol(config: Config) -> bytes:
    """Return the request to enrol, the same for every site."""
    return pack({}, {"kind": ENROL, "round": -1, "terms": {"config": config.to_plain()}})


def ask_all(kind: str, down: Down, terms: Terms) -> bytes:
    """Return the part of a request that is the same for every site."""
    return pack(down.tensors, {"kind": kind, "round": down.round, "terms": terms.plain()})


def ask_one(client: int, ticket: Tensors, evaluate: bool) -> bytes:
    """Return the part of a request for one site."""
    return pack(ticket, {"client": client, "evaluate": evaluate})


def read_request(parts: Parts) -> Request:
    """Return what a site is asked; raises ValueError or KeyError if it cannot be read."""
    tensors, header = unpack(parts[SHARED])
    down = Down(header["round"], tensors)
    ticket, own = unpack(parts[OWN]) if OWN in parts else ({}, {"client": -1, "evaluate": False})
    return Request(
        header["kind"], header["terms"], down, Job(own["client"], down, ticket, own["evaluate"])
    )


def answer_train(result: Reply | Failure, round: int) -> Parts:
    """Return a finished job, and which round it is for."""
    if isinstance(result, Failure):
        return answer_error(result.reason)
    return {OWN: pack({}, {"round": round}), SHARED: pack(*wire.result_message(result))}


def answer_plain(tensors: Tensors, header: Header) -> Parts:
    """Return an enrolment or what a survey found."""
    return {OWN: pack(tensors, header)}


def answer_error(reason: str) -> Parts:
    """Return why there is no answer."""
    return answer_plain({}, {"error": reason})


def read_plain(parts: Parts) -> tuple[Tensors, Header]:
    """Return an enrolment or what a survey found; raises ValueError if it cannot be read or is an
    error.
    """
    if OWN not in parts:
        raise ValueError("it has no answer in it")
    tensors, header = unpack(parts[OWN])
    if not isinstance(header, dict) or "error" in header:
        raise ValueError(str(header["error"]) if isinstance(header, dict) else "it has no header")
    return tensors, header


def read_train(parts: Parts, client: int, round: int) -> Reply | Failure:
    """Return a site's result, or why it is none; nothing that a site sends can raise anything else."""
    try:
        _, about = read_plain(parts)
        if about.get("round") != round:
            return Failure(client, f"answers for round {about.get('round')}, not for {round}")
        result = checked(wire.to_result(wire.Message(*unpack(parts[SHARED]))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Failure(client, f"its answer cannot be used: {error}")
    if result.up.client != client:
        return Failure(client, f"answers as client {result.up.client}")
    return result


def checked(result: Reply | Failure) -> Reply:
    """Return a reply if its plain values are what they should be; raises ValueError otherwise."""
    if isinstance(result, Failure):
        raise ValueError(result.reason)  # noqa: TRY004
    up = result.up
    numbers: list[Any] = [up.seconds, *up.losses.values()]
    if not isinstance(up.client, int) or not isinstance(up.samples, int):
        raise ValueError("client and samples are not whole numbers")  # noqa: TRY004
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("losses or seconds are not numbers")
    return result
