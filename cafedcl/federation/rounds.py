"""The round loop: sample → train → check → aggregate → evaluate → record."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from cafedcl.config.sections import Config
from cafedcl.core.client_names import client_title
from cafedcl.core.contract import TICKET, Down, Failure, Job, Reply
from cafedcl.core.printable import printable
from cafedcl.core.rng import torch_stream
from cafedcl.core.steps import step, tracked
from cafedcl.core.tensors import (
    FEATURES,
    MODEL,
    OPTIMIZER,
    OWN_MODEL,
    Header,
    Tensors,
    moved,
    nbytes,
    prefixed,
    under,
    without,
)
from cafedcl.engine.base import Engine, Sites
from cafedcl.engine.choose import choose_engine, settle_stack
from cafedcl.federation.attack import Attack
from cafedcl.federation.bias_loop import BiasLoop
from cafedcl.federation.callback import Callback, Record, StoppedByCallback, check_events, notify
from cafedcl.federation.checkpoint import check_snapshot, memories_of, snapshot_of
from cafedcl.federation.client_privacy import ClientPrivacy, PrivateAggregator
from cafedcl.federation.clock import Clock
from cafedcl.federation.defence import Defence, DefendedAggregator, left_out
from cafedcl.federation.final_scores import FinalScores
from cafedcl.federation.participants import Participants
from cafedcl.federation.privacy import make_privacy
from cafedcl.federation.replies import (
    RoundReplies,
    client_of,
    gather_notes,
    in_order,
    make_validator,
    with_own_model,
)
from cafedcl.federation.server_optimizer import ServerOptimizer
from cafedcl.functional.metrics import Evaluator, Scores
from cafedcl.functional.reply_check import all_finite
from cafedcl.methods import checked
from cafedcl.methods.base import Aggregator
from cafedcl.task.build import Setup, prepare
from cafedcl.task.checks import personal_remarks
from cafedcl.task.task import arithmetic

ServerStep = Aggregator | DefendedAggregator | PrivateAggregator


class Federation:
    """A server and its clients, stepped round by round."""

    def __init__(
        self,
        config: Config | Setup,
        callbacks: Sequence[Callback] = (),
        engine: Engine | None = None,
    ) -> None:
        for callback in callbacks:
            check_events(callback)
        setup = prepare(config) if isinstance(config, Config) else config
        setup = replace(setup, config=settle_stack(setup))
        self.config = setup.config
        self.task = setup.task
        self.method = setup.task.method
        self.options = self.config.federation
        self.server = ServerOptimizer(self.config.server, self.task)
        self.defence = Defence(self.config.defence, self.task)
        self.privacy = make_privacy(self.config, self.task)
        self.callbacks = list(callbacks)
        self.notices: list[str] = []
        """Notices about what differs from the request, since the federation was created."""
        self.engine = engine or choose_engine(setup, self.notice)
        self.sample = Participants(self.config, len(self.task.clients.shards))
        self.round = 0
        state = self.defence.start(self.server.start(setup.start()))
        self.state: Tensors = self.privacy.start(state)
        self.memories: dict[int, Tensors] = {}
        self.history: list[Record] = []
        self.tables: Tensors = {}
        """The tables of the last round."""
        self.counts = setup.counts
        self.client_names = setup.client_names
        self.about: dict[str, Any] = {}
        """What is added to the run's ``environment.json``, such as the sites of a deployment."""
        _, y = self.task.clients.test_set(None)
        shots = self.config.evaluate.shots
        self.evaluator = Evaluator(
            self.counts, y.cpu(), setup.test_counts, shots, self.task.clients.remote
        )
        self.own = self.evaluator.no_own()
        self.loop = BiasLoop(self.task, self.config.evaluate.loop)
        self.attack = Attack(self.config, self.task)
        remarks = (personal_remarks(self.task), self.attack.remarks(), self.defence.remarks())
        for remark in chain.from_iterable(remarks):
            self.notice(remark)
        self.validator = make_validator(self.config, self.task)

    @property
    def enrolment_bytes(self) -> int:
        """The bytes sent once, before the first round: counts up, their maxima and sums down."""
        return 3 * nbytes({"counts": self.task.clients.shards.counts})

    def client_title(self, client: int) -> str:
        """Return how a client is displayed: by its name, or by its number."""
        return client_title(self.task.clients.shards.names, client)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or the privacy budget allows no more."""
        if self.round >= self.options.rounds:
            return True
        return self.privacy.is_exhausted_by(self.state, self.round, 1)

    def run(self) -> list[Record]:
        """Step until the last round, or until a callback raises StopIteration."""
        with suppress(StoppedByCallback):
            self.notify("began")
            while not self.finished:
                self.step()
            if self.round < self.options.rounds:
                why = self.privacy.why_exhausted(self.state, self.round)
                self.notice(f"ended after round {self.round} of {self.options.rounds}: {why}")
        return self.history

    def step(self) -> Record:
        """Run one round. The federation changes only at its end, so an interrupt is harmless."""
        clock = Clock()
        sampled, dropped = self.sample(self.round)
        self.notify("round_began", len(sampled))
        down = self.down()
        replies = RoundReplies(self.task.per_class)
        aggregator = self.aggregator()
        full = self.config.evaluate.full and self.is_last(self.round)
        final = FinalScores(self.task, self.config, self.counts, self.attack.liars, full)
        with arithmetic(self.task), torch_stream(self.config.run.seed, "server", self.round):
            present = [client for client in sampled if client not in dropped]
            for result in clock.waiting("train", self.train(down, present)):
                checked = self.check(result)
                replies.add(checked)
                if isinstance(checked, Reply):
                    # Before it is aggregated, because the aggregator frees the model.
                    with clock("evaluate"):
                        final.add_own(checked, down)
                    with clock("aggregate"):
                        aggregator.add(checked.up)
            with clock("aggregate"):
                state, reason = self.update(aggregator, replies.counted)
                state = self.privacy.visited(state, present)
        accepted = [] if reason else replies.good
        with clock("evaluate"), step("scoring the models"):
            scores, own, tables = self.evaluate(state, accepted)
            own_scores = self.evaluator.own_scores(own) if self.own_is_due(self.round) else None
            tables |= final.finish(state, scores, own_scores)
        for remark in final.remarks():
            self.notice(remark)
        record = Record(
            round=self.round,
            status="skipped" if reason else "ok",
            participants=sampled,
            dropped=dropped,
            failed=[asdict(failure) for failure in replies.failures],
            left_out=left_out(aggregator),
            traffic=replies.traffic(down, len(sampled), self.engine, pooled=self.method.pooled),
            lr=self.task.schedule.learning_rate(self.round, 0),
            loss=replies.mean_losses(),
            server=scores,
            own=own_scores,
            seconds=clock.seconds,
            privacy=self.privacy.after_round(state, self.round),
            reason=reason,
            tables=tables,
        )
        self.commit(state, own, accepted, record)
        return record

    def down(self) -> Down:
        """Return what the server sends to clients in this round."""
        return Down(self.round, checked.broadcast(self.method, self.server.sent(self.state)))

    def train(self, down: Down, clients: list[int]) -> Iterator[Reply | Failure]:
        """Yield the results of the clients' jobs, in the order of clients."""
        if not clients:
            return
        scored: set[int] = set()
        if self.task.scores_own:
            scored = self.sample.scored_in(down.round, due=self.own_is_due(down.round))
        kept = {client: without(OWN_MODEL, self.memories.get(client, {})) for client in clients}
        jobs = [Job(client, down, kept[client], client in scored) for client in clients]
        # After an interrupt, closing the engine's results abandons unfinished jobs.
        with closing(self.engine.train(jobs)) as results:
            title = f"round {down.round + 1} of {self.options.rounds}"
            counted = tracked(results, title, len(clients), "clients")
            yield from in_order((self.received(result, down) for result in counted), clients)

    def received(self, result: Reply | Failure, down: Down) -> Reply | Failure:
        """Return a result as the server receives it.

        Attackers have tampered with theirs, and everything but the model is on the server's device.
        """
        if isinstance(result, Failure):
            return result
        if self.config.store.own and TICKET not in result.memory:
            result = with_own_model(result, down)
        result = self.attack.tampered(result, down)
        up = result.up
        device = self.task.server_device
        away = {name: value for name, value in up.tensors.items() if value.device != device}
        if not away:
            return result
        return replace(result, up=replace(up, tensors={**up.tensors, **moved(away, device)}))

    def check(self, result: Reply | Failure) -> Reply | Failure:
        """Turn an invalid reply into a failure; return every other result as it is."""
        if isinstance(result, Reply):
            try:
                problem = self.validator.problem(result)
            except Exception as error:
                # Whatever a client sends may only fail that client, and never end the run.
                problem = f"its reply cannot be checked: {type(error).__name__}: {error}"
            if problem:
                result = Failure(result.up.client, problem)
        failure = result if isinstance(result, Failure) else None
        self.notify("client_done", client_of(result), failure)
        return result

    def aggregator(self) -> ServerStep:
        """Start the server step of a round: the method's own, private or behind a defence."""
        plain = checked.aggregator(self.method, self.server.sent(self.state))
        if isinstance(self.privacy, ClientPrivacy):
            return self.privacy.aggregator(plain, self.round, self.engine)
        return self.defence.aggregator(plain)

    def update(self, aggregator: ServerStep, replies: int) -> tuple[Tensors, str]:
        """Return the server's new state, or the old one and why the round does not count."""
        # A private round always counts, because this must not depend on who replied.
        needed = 0 if self.privacy.noisy_step else self.options.min_replies
        if replies < needed:
            return self.state, f"{replies} valid replies, federation.min_replies = {needed}"
        state = self.server.step(self.state, aggregator.finish())
        if all_finite(state.values()):
            return state, ""
        broken = next(name for name, value in state.items() if not all_finite([value]))
        reason = f"the server's step gave NaN or Inf in '{broken}'"
        self.notice(f"round {self.round + 1}: {reason}; the state before it is kept")
        return self.state, reason

    def evaluate(
        self, state: Tensors, replies: list[Reply]
    ) -> tuple[Scores | None, Tensors, Tensors]:
        """Score the server's model and the clients' own; return scores, own results and tables."""
        own_due = self.own_is_due(self.round)
        server_due = self.task.has_server_model and self.is_due(
            self.round, self.config.evaluate.every
        )
        # Scoring begins on the device before the host gathers what clients sent.
        wait_for_scores = self.begin_scoring(state) if server_due else None
        own = self.own
        if any(reply.correct for reply in replies):
            own = {name: value.clone() for name, value in self.own.items()}
        for reply in replies:
            if reply.correct and self.task.scores_own:
                for name, value in self.evaluator.own(reply.up.client, reply.correct).items():
                    own[name][reply.up.client] = value
                own["round"][reply.up.client] = self.round
        notes: Tensors = {}
        if self.config.store.notes and (server_due or own_due):
            notes = gather_notes(replies, len(self.counts))
        scores: Scores | None = None
        tables: Tensors = {}
        if wait_for_scores is not None:
            scores, tables = wait_for_scores()
        if own_due:
            tables |= prefixed("own/", own)
        if tables and self.config.store.notes:
            ups = [reply.up for reply in replies]
            loop = self.loop(self.engine, self.state, self.server.live(state), ups, notes)
            tables |= prefixed("notes/", notes) | prefixed("loop/", loop)
            tables |= without((MODEL, OPTIMIZER, FEATURES), state)
        return scores, own, moved(tables, "cpu")

    def begin_scoring(self, state: Tensors) -> Callable[[], tuple[Scores, Tensors]]:
        """Begin to score the server's model on the test images; return the call that waits for it.

        Where clients have test images of their own, each scores the model at its place.
        """
        wait_for_predictions = self.engine.predict(state) if len(self.evaluator.y) else None

        def wait() -> tuple[Scores, Tensors]:
            scores: Scores = {}
            tables: Tensors = {}
            if wait_for_predictions is not None:
                scores, tables = self.evaluator.server(wait_for_predictions())
            if not isinstance(self.engine, Sites) or not self.task.clients.remote:
                return scores, tables
            survey = self.engine.survey(state)
            surveyed, behind = self.evaluator.surveyed(survey)
            missing = int((survey["tested"].sum(1) == 0).sum())
            if missing:
                # Nobody should unknowingly compare scores over different sites.
                surveyed["client_missing"] = missing
            clients = {name: v for name, v in surveyed.items() if name.startswith("client_")}
            return {**surveyed, **scores, **clients}, {**tables, **behind}

        return wait

    def is_due(self, round: int, every: int) -> bool:
        """Return whether something done every few rounds is due; in the last round it always is."""
        return (round + 1) % every == 0 or self.is_last(round)

    def is_last(self, round: int) -> bool:
        """Return whether a round that runs or has just ended is the last one."""
        if round + 1 == self.options.rounds:
            return True
        # The state already includes a round that has just ended.
        rounds_to_count = round + 1 - self.round
        return self.privacy.is_exhausted_by(self.state, self.round, rounds_to_count + 1)

    def own_is_due(self, round: int) -> bool:
        """Return whether the clients' own models are scored in this round."""
        return self.task.scores_own and self.is_due(round, self.config.evaluate.own_every)

    def commit(self, state: Tensors, own: Tensors, replies: list[Reply], record: Record) -> None:
        """Make a round's results the federation's own, and notify the callbacks."""
        self.memories |= {reply.up.client: reply.memory for reply in replies}
        self.state = state
        self.own = own
        self.round = record.round + 1
        self.privacy.commit(record.privacy)
        self.history.append(replace(record, tables={}))
        self.tables = record.tables
        notes = {reply.up.client: reply.up.notes for reply in replies}
        names = self.task.clients.data.names
        augmenter = self.task.tail.augmenter
        for remark in augmenter.remarks(record.round, notes, names, self.client_title):
            self.notice(remark)
        self.notify("round_done", record)

    def notice(self, message: str) -> None:
        """Report a difference from the request to the callbacks, or else to standard error."""
        self.notices.append(message)
        self.notify("noticed", message)
        if not self.callbacks:
            print(printable(f"warning: {message}"), file=sys.stderr)

    def notify(self, event: str, *details: Any) -> None:
        """Notify every callback of an event."""
        notify(self.callbacks, event, self, *details)

    def snapshot(self) -> tuple[Tensors, Header]:
        """Return all that is needed to continue from here."""
        tensors = snapshot_of(self.state, self.memories, self.own)
        return tensors, {"round": self.round, "releases": self.privacy.releases}

    def restore(self, tensors: Tensors, header: Header) -> None:
        """Return to a snapshot; raises ValueError if it does not fit this federation."""
        # A checkpoint of an earlier version may lack kinds of scores; later rounds add them.
        tensors = {**prefixed("own/", self.evaluator.no_own()), **tensors}
        check_snapshot(tensors, self.state, self.own)
        self.round = int(header["round"])
        self.privacy.resume(self.round, int(header.get("releases", self.round)))
        stored = under("state/", tensors)
        places = {True: self.task.device, False: self.task.server_device}
        # A file gives its tensors in any order. Where weights are one vector, their order decides
        # the last bits of its norm.
        self.state = {
            name: stored[name].to(places[name.startswith((MODEL, OPTIMIZER))])
            for name in self.state
        }
        self.own = under("own/", tensors)
        self.memories = memories_of(tensors)

    def close(self) -> None:
        """End worker processes and free memory."""
        self.engine.close()

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
