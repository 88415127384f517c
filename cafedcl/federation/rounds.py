"""The round loop: sample → train → check → aggregate → evaluate → record."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Failure, Job, Reply, Up
from cafedcl.core.flat import storage_tensors
from cafedcl.core.rng import stream, torch_stream
from cafedcl.core.tensors import (
    MODEL,
    Header,
    Tensors,
    floats,
    moved,
    nbytes,
    prefixed,
    under,
    without,
)
from cafedcl.engine.base import Engine, Results, Sites
from cafedcl.engine.choose import choose_engine, settle_stack
from cafedcl.federation.bias_loop import Loop
from cafedcl.functional.metrics import Evaluator, Scores
from cafedcl.functional.reply_check import ReplyValidator
from cafedcl.task.build import Setup, check_schedule, prepare
from cafedcl.task.task import arithmetic

T = TypeVar("T")


@dataclass
class Record:
    """What happened in one round. ``seconds`` is the only part that differs between two runs of the
    same seed.
    """

    round: int
    status: str
    participants: list[int]
    dropped: list[int]
    failed: list[dict[str, Any]]
    traffic: dict[str, int]
    lr: float
    loss: dict[str, float]
    server: Scores | None = None
    own: Scores | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    tables: Tensors = field(default_factory=dict)
    """Per-client and per-class results behind the scores; not in the line of metrics nor in the
    history.
    """

    def line(self) -> dict[str, Any]:
        """Return the record as plain values, without the tables."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if entry.name != "tables"
        }


class Watcher:
    """Sees a federation at work. Every step may be overridden; none has to be."""

    def noticed(self, federation: "Federation", message: str) -> None:
        """Something is not as it was asked for, before the first round or in one, and the run goes
        on.
        """

    def round_began(self, federation: "Federation", clients: int) -> None:
        """A round has sampled its clients."""

    def client_done(self, federation: "Federation", client: int, failure: Failure | None) -> None:
        """A client has replied, or failed."""

    def round_done(self, federation: "Federation", record: Record) -> None:
        """A round is over; the federation's state is the new one."""


class Federation:
    """A server and its clients, stepped round by round."""

    def __init__(
        self, config: Config | Setup, watchers: Sequence[Watcher] = (), engine: Engine | None = None
    ) -> None:
        setup = prepare(config) if isinstance(config, Config) else config
        setup = replace(setup, config=settle_stack(setup))
        self.config = setup.config
        self.task = setup.task
        self.method = setup.task.method
        self.options = self.config.federation
        self.watchers = list(watchers)
        self.engine = engine or choose_engine(setup, lambda message: self.tell("noticed", message))
        self.schedule = check_schedule(self.config)
        self.round = 0
        self.state: Tensors = setup.start()
        self.memories: dict[int, Tensors] = {}
        self.history: list[Record] = []
        self.counts = setup.counts
        self.about: dict[str, Any] = {}
        """What the run folder notes of where the clients are."""
        _, y = self.task.clients.test_set(None)
        self.evaluator = Evaluator(
            self.counts,
            y.cpu(),
            setup.test_counts,
            self.config.evaluate.shots,
            self.task.clients.remote,
        )
        self.own = self.evaluator.no_own()
        self.loop = Loop(self.task, self.config.evaluate.loop)
        self.validator = ReplyValidator(
            self.task.shared(), self.task.fields, self.task.clients.shards.counts
        )

    @property
    def enrolment(self) -> int:
        """Bytes sent once before round 0: every client's class counts up, the largest and the sum
        per class down.
        """
        return 3 * nbytes({"counts": self.task.clients.shards.counts})

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.options.rounds

    def run(self) -> list[Record]:
        """Step until the last round."""
        while not self.finished:
            self.step()
        return self.history

    def step(self) -> Record:
        """One round. Everything it changes is changed at its end, so an interrupted round leaves no
        trace.
        """
        clock = Clock()
        t = self.round
        sampled, dropped = self.sample(t)
        self.tell("round_began", len(sampled))
        down = Down(t, self.method.broadcast(self.state))

        tally = RoundReplies(self.task.per_class)
        present = [k for k in sampled if k not in dropped]
        with (
            clock("aggregate"),
            arithmetic(self.task),
            torch_stream(self.config.run.seed, "server", t),
            closing(self.train(down, present)) as results,
        ):
            aggregate = self.method.aggregate(self.state, tally.take(clock.over("train", results)))
        enough = len(tally.replies) >= self.options.min_replies
        replies, state = (tally.replies, aggregate) if enough else ([], self.state)
        with clock("evaluate"):
            server, own, tables = self.evaluate(state, replies)

        record = Record(
            round=t,
            status="ok" if enough else "skipped",
            participants=sampled,
            dropped=dropped,
            failed=[asdict(failure) for failure in tally.failures],
            traffic=self.traffic(down, sampled, tally),
            lr=self.task.schedule.learning_rate(t, 0),
            loss=mean_losses(tally.replies),
            server=server,
            own=self.evaluator.own_scores(own) if self.own_is_due(t) else None,
            seconds=clock.seconds,
            tables=tables,
        )
        self.memories |= {reply.up.client: reply.memory for reply in replies}
        self.state = state
        self.own = own
        self.round = t + 1
        self.history.append(replace(record, tables={}))
        told = {reply.up.client: reply.up.notes for reply in replies}
        for remark in self.task.tail.augmenter.remarks(t, told, self.task.clients.data.names):
            self.tell("noticed", remark)
        self.tell("round_done", record)
        return record

    def sample(self, t: int) -> tuple[list[int], list[int]]:
        """Return the clients asked to take part, and those among them that will drop out before
        they reply.
        """
        clients = len(self.task.clients.shards)
        number = max(1, round(self.options.participation * clients))
        chosen = stream(self.config.run.seed, "participants", t).choice(
            clients, number, replace=False
        )
        sampled = sorted(int(k) for k in chosen)
        chance = self.options.dropout
        planned = self.schedule.get(t, set())
        seed = self.config.run.seed
        drawn = (
            {k for k in sampled if stream(seed, "dropout", k, t).random() < chance}
            if chance
            else set()
        )
        return sampled, [k for k in sampled if k in planned or k in drawn]

    def train(self, down: Down, clients: list[int]) -> Results:
        """Run the clients' jobs; every reply is checked, and both replies and failures come in the
        order of clients.
        """
        own = self.own_is_due(down.round)
        jobs = [Job(client, down, self.memories.get(client, {}), own) for client in clients]
        with closing(self.engine.train(jobs)) as results:
            for result in in_order(map(self.received, results), clients):
                problem = (
                    self.validator.problem(result) if isinstance(result, Reply) else result.reason
                )
                failure = Failure(client_of(result), problem) if problem else None
                self.tell("client_done", client_of(result), failure)
                yield failure or result

    def received(self, result: Reply | Failure) -> Reply | Failure:
        """Return a result with its per-class entries, which are small, where the server works on
        them.
        """
        if isinstance(result, Failure):
            return result
        up = result.up
        home = self.task.server_device
        small = self.task.per_class
        away = {
            name: value
            for name, value in up.tensors.items()
            if name in small and value.device != home
        }
        return (
            replace(result, up=replace(up, tensors={**up.tensors, **moved(away, home)}))
            if away
            else result
        )

    def evaluate(
        self, state: Tensors, replies: list[Reply]
    ) -> tuple[Scores | None, Tensors, Tensors]:
        """Score the server's model and note the clients' own; returns the scores, all own results,
        and the tables.
        """
        due = self.task.has_server_model and self.is_due(self.round, self.config.evaluate.every)
        scores = self.scored(state) if due else None
        own = {name: value.clone() for name, value in self.own.items()}
        for reply in replies:
            if reply.correct and not self.method.pooled:
                for name, value in self.evaluator.own(reply.up.client, reply.correct).items():
                    own[name][reply.up.client] = value
                own["round"][reply.up.client] = self.round
        notes = (
            self.notes(replies)
            if self.config.store.notes and (due or self.own_is_due(self.round))
            else {}
        )
        server, tables = scores() if scores else (None, Tensors())
        if self.own_is_due(self.round):
            tables |= prefixed("own/", own)
        if tables and self.config.store.notes:
            tables |= prefixed("notes/", notes) | prefixed(
                "loop/",
                self.loop(self.engine, self.state, state, [reply.up for reply in replies], notes),
            )
            tables |= without(MODEL, state)
        return server, own, moved(tables, "cpu")

    def scored(self, state: Tensors) -> Callable[[], tuple[Scores, Tensors]]:
        """Begin to score the server's model on the test images here; where clients have their own,
        each at its client.

        Returns the call that waits for the scores and the tables behind them.
        """
        predicted = self.engine.predict(state) if len(self.evaluator.y) else None

        def scores() -> tuple[Scores, Tensors]:
            server, tables = self.evaluator.server(predicted()) if predicted else ({}, {})
            if not isinstance(self.engine, Sites) or not self.task.clients.remote:
                return server, tables
            surveyed, behind = self.evaluator.surveyed(self.engine.survey(state))
            clients = {
                name: value for name, value in surveyed.items() if name.startswith("client_")
            }
            return {**surveyed, **server, **clients}, {**tables, **behind}

        return scores

    def notes(self, replies: list[Reply]) -> Tensors:
        """Return what clients told about themselves, (clients, …) with NaN for those that did not
        reply.
        """
        told: dict[str, dict[int, Tensor]] = {}
        for reply in replies:
            for name, value in reply.up.notes.items():
                told.setdefault(name, {})[reply.up.client] = value.cpu()
        gathered: Tensors = {}
        for name, values in told.items():
            rows = torch.stack(list(values.values()))
            gathered[name] = torch.full((len(self.counts), *rows.shape[1:]), torch.nan)
            gathered[name][list(values)] = rows.float()
        return gathered

    def is_due(self, t: int, every: int) -> bool:
        """Return whether something done every so many rounds is due; the last round always is."""
        return (t + 1) % every == 0 or t + 1 == self.options.rounds

    def own_is_due(self, t: int) -> bool:
        """Return whether the clients' own models are scored in this round."""
        return not self.method.pooled and self.is_due(t, self.config.evaluate.own_every)

    def traffic(self, down: Down, sampled: list[int], tally: "RoundReplies") -> dict[str, int]:
        """Return what was really sent: numbers and bytes, down to everyone sampled and up from
        everyone who replied.
        """
        times = 0 if self.method.pooled else 1
        sent = {
            "down_floats": len(sampled) * floats(down.tensors),
            "down_bytes": len(sampled) * nbytes(down.tensors),
            "up_floats": tally.floats,
            "up_bytes": tally.bytes,
            "notes_bytes": sum(nbytes(reply.up.notes) for reply in tally.replies),
        }
        return {name: times * number for name, number in sent.items()}

    def tell(self, event: str, *details: Any) -> None:
        """Let every watcher see an event."""
        for watcher in self.watchers:
            getattr(watcher, event)(self, *details)

    def snapshot(self) -> tuple[Tensors, Header]:
        """Return all that is needed to go on from here."""
        memories = {
            f"memory/{k}/{name}": v
            for k, memory in self.memories.items()
            for name, v in memory.items()
        }
        return {**prefixed("state/", self.state), **memories, **prefixed("own/", self.own)}, {
            "round": self.round
        }

    def restore(self, tensors: Tensors, header: Header) -> None:
        """Go back to a snapshot."""
        self.round = int(header["round"])
        state = under("state/", tensors)
        model = prefixed(MODEL, under(MODEL, state))
        self.state = {
            **moved(model, self.task.device),
            **moved(without(MODEL, state), self.task.server_device),
        }
        self.own = under("own/", tensors)
        self.memories = memories_of(tensors)

    def close(self) -> None:
        """Let go of worker processes."""
        self.engine.close()

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class RoundReplies:
    """What came back in a round: the replies, without the models, which the server step has taken
    in.
    """

    by_class: frozenset[str]
    replies: list[Reply] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    floats: int = 0
    bytes: int = 0

    def take(self, results: Iterable[Reply | Failure]) -> Iterator[Up]:
        """Note every result and hand on what travelled."""
        for result in results:
            if isinstance(result, Failure):
                self.failures.append(result)
                continue
            up = result.up
            for sent in (storage_tensors(up.model), up.tensors):
                self.floats += floats(sent)
                self.bytes += nbytes(sent)
            kept = {name: value for name, value in up.tensors.items() if name in self.by_class}
            self.replies.append(replace(result, up=replace(up, model={}, tensors=kept)))
            yield up


def client_of(result: Reply | Failure) -> int:
    """Return whose result it is."""
    return result.up.client if isinstance(result, Reply) else result.client


def in_order(
    results: Iterable[Reply | Failure], clients: Iterable[int]
) -> Iterator[Reply | Failure]:
    """Yield results in the order of the clients, holding back only those that come early; strays
    come last.
    """
    early: dict[int, Reply | Failure] = {}
    waiting = deque(clients)
    for result in results:
        early[client_of(result)] = result
        while waiting and waiting[0] in early:
            yield early.pop(waiting.popleft())
    yield from (early[client] for client in sorted(early))


def mean_losses(replies: list[Reply]) -> dict[str, float]:
    """Return every term of the loss, averaged over the clients by their samples; a term a client
    lacks is 0.
    """
    samples = sum(reply.up.samples for reply in replies)
    names = dict.fromkeys(name for reply in replies for name in reply.up.losses)
    means = {
        n: sum(r.up.losses.get(n, 0.0) * r.up.samples for r in replies) / samples for n in names
    }
    return {name: value for name, value in means.items() if math.isfinite(value)}


def memories_of(snapshot: Tensors) -> dict[int, Tensors]:
    """Return what each client keeps, from a snapshot's tensors."""
    memories: dict[int, Tensors] = {}
    for name, value in under("memory/", snapshot).items():
        client, _, entry = name.partition("/")
        memories.setdefault(int(client), {})[entry] = value
    return memories


class Clock:
    """Seconds per phase of a round; a phase inside another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inside = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        outer = self.inside
        self.inside = 0.0
        try:
            yield
        finally:
            self._over(phase, began, outer)

    def over(self, phase: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items and time the waiting for them."""
        while True:
            began = time.perf_counter()
            outer = self.inside
            self.inside = 0.0
            item = next(items, None)
            self._over(phase, began, outer)
            if item is None:
                return
            yield item

    def _over(self, phase: str, began: float, outer: float) -> None:
        took = time.perf_counter() - began
        self.seconds[phase] = self.seconds.get(phase, 0.0) + took - self.inside
        self.inside = outer + took
