"""The checks, one function each: what a method must do for engines, resuming and messages."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Down, Reply
from cafedcl.core.errors import CafedclError, in_words, nearest
from cafedcl.core.tensors import ANCHORS, MODEL, pack, under, unpack, without
from cafedcl.engine.cpu.groups import stacking_obstacle
from cafedcl.engine.cpu.messages import Message, result_message, to_result
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.federation.replies import make_validator
from cafedcl.federation.rounds import Federation
from cafedcl.methods import checked, find_method
from cafedcl.methods.base import Method
from cafedcl.models.base import Network
from cafedcl.testing.case import (
    Case,
    ConformanceError,
    first_difference,
    result_of,
)
from cafedcl.testing.loss_checks import (
    check_no_chance,
    check_no_value_is_read,
    check_only_padding,
    check_padding,
    check_per_image,
)
from cafedcl.testing.server_checks import check_averages, check_order, check_weights

ENGINE_TOLERANCE = 1e-4
"""The largest relative difference between two engines after a round, in float32."""


def check_description(case: Case) -> None:
    """A method has its own name, and options that the config can read."""
    try:
        method, _ = find_method(case.method)
    except CafedclError as error:
        raise ConformanceError(str(error)) from None
    if not vars(method).get("name"):
        raise case.fail("it has no name of its own; set `name` in its class")


def check_rounds(case: Case) -> None:
    """Rounds succeed, and leave a finite state with the same names, types and shapes.

    The first axis of a tensor may grow.
    """
    before = {name: (value.dtype, value.shape[1:]) for name, value in case.begun.state.items()}
    try:
        federation = case.finished
    except CafedclError as error:
        raise case.fail(f"a round failed: {error}") from None
    for record in federation.history:
        if record.status != "ok" or record.failed:
            reason = str(record.failed[0]["reason"]) if record.failed else record.reason
            raise case.fail(f"round {record.round + 1} failed: {reason}")
        if not record.loss:
            raise case.fail("its loss has no finite term")
    after = {name: (value.dtype, value.shape[1:]) for name, value in federation.state.items()}
    if before != after:
        names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        raise case.fail(f"its state changes names, types or shapes: {', '.join(names)}")
    trained = federation.task.shared().keys() & federation.task.network.state_dict().keys()
    model = [MODEL + name for name in trained]
    if model and all(torch.equal(case.begun.state[n], federation.state[n]) for n in model):
        raise case.fail(
            "its model is the same after every round; the state that `update` gets is that of "
            "before the round, so it must not return the weights in it"
        )


def check_seed(case: Case) -> None:
    """The random seed alone decides the result."""
    seed = case.finished.config.run.seed
    one, _ = case.finished.snapshot()
    same = result_of(case.federation())
    other = result_of(case.federation(**{"run.seed": seed + 1}))
    name = first_difference(one, same)
    if name is not None:
        raise case.fail(
            f"two runs with the same seed differ in '{name}'; random numbers must be PyTorch's, or "
            "in an augmentation those of `client.draws`"
        )
    if first_difference(one, other) is None:
        raise case.fail("two runs with different seeds give the same result")


def check_reply(case: Case) -> None:
    """Replies match ``fields`` and the enrolment; a reply with NaN is rejected."""
    federation = case.begun
    reply = case.replies[0]
    validator = make_validator(federation.config, federation.task)
    for honest in case.replies:
        problem = validator.problem(honest)
        if problem is not None:
            raise case.fail(
                f"its reply is rejected: {problem}; see `fields`, `claims` and `contradiction`"
            )
    for part in ("model", "tensors"):
        values: Mapping[str, Tensor] = getattr(reply.up, part)
        spoilt = {n: v * torch.nan if v.is_floating_point() else v for n, v in values.items()}
        if any(value.is_floating_point() and value.numel() for value in spoilt.values()):
            changed: dict[str, Any] = {part: spoilt}
            bad = replace(reply, up=replace(reply.up, **changed))
            if validator.problem(bad) is None:
                raise case.fail(f"NaN in the {part} of a reply is not noticed")


def check_census(case: Case) -> None:
    """Clients do not use what they learn about others, if the method says so."""
    if case.begun.method.uses_census:
        return
    untold = case.untold()
    untold.step()
    name = first_difference(case.after_one_round.state, untold.state)
    if name is not None:
        raise case.fail(
            f"'{name}' of its state depends on `client.census`; set `uses_census = True`, so that "
            "privacy of clients, which leaves the census empty, refuses it"
        )


def check_rounds_ahead(case: Case) -> None:
    """A round does not depend on the number of later rounds, if the method says so."""
    federation = case.finished
    if federation.method.depends_on_rounds or federation.config.train.depends_on_rounds:
        return
    longer = case.federation(**{"federation.rounds": federation.config.federation.rounds + 1})
    for _ in federation.history:
        longer.step()
    name = first_difference(federation.state, longer.state)
    if name is not None:
        raise case.fail(
            f"'{name}' of its state depends on the number of rounds, as through `visit.progress`; "
            "set `depends_on_rounds = True`"
        )


def check_broadcast(case: Case) -> None:
    """Only weights and anchors are sent, and personal weights stay with their clients."""
    federation = case.after_one_round
    sent = checked.broadcast(federation.method, federation.state)
    others = without((MODEL, ANCHORS), sent)
    if others:
        raise case.fail(f"it broadcasts '{min(others)}', which is neither a weight nor an anchor")
    shared = federation.task.shared().keys()
    if under(MODEL, sent).keys() != shared:
        raise case.fail("it does not broadcast exactly the weights that are averaged")
    for memory in federation.memories.values():
        if under(MODEL, memory).keys() != federation.task.personal:
            raise case.fail("a client's memory has other weights than its personal ones")


def check_scores(case: Case) -> None:
    """Scores are one number per image and class, and none is NaN."""
    federation = case.federation()
    method = federation.method
    scores = method.scores
    problems: list[str] = []

    def watched(model: Network, x: Tensor, *rest: Any) -> Tensor:
        found = scores(model, x, *rest)
        if isinstance(found, Tensor) and found.isnan().any():
            problems.append("its scores are NaN for some images")
        return found

    with patch.object(method, "scores", watched):
        try:
            record = federation.step()
        except CafedclError as error:
            raise case.fail(str(error)) from None
    problems += [str(failure["reason"]) for failure in record.failed]
    if problems:
        raise case.fail(problems[0])


def check_server_model(case: Case) -> None:
    """The server's model is scored without personal weights."""
    federation = case.after_one_round
    task = federation.task
    if not task.personal or not task.has_server_model:
        return
    plain = federation.engine.predict(federation.state)()
    spoilt = {name: torch.full_like(task.initial[name], 1e3) for name in task.personal}
    with patch.dict(task.initial, spoilt):
        other = federation.engine.predict(federation.state)()
    if not torch.equal(plain, other):
        raise case.fail(
            "personal weights change the scores of the server's model; "
            "without a memory, `scores` must not use them"
        )


def check_engines(case: Case) -> None:
    """Every engine computes what the reference engine computes, up to rounding errors."""
    expected = case.federation(**{"federation.participation": 1.0})
    expected.step()
    for title, make in ENGINES.items():
        federation = case.federation(**{"federation.participation": 1.0})
        engine = make(case, federation)
        if engine is None:
            continue
        federation.engine = engine
        try:
            record = federation.step()
        finally:
            federation.close()
        if record.failed:
            raise case.fail(f"the {title} engine fails: {record.failed[0]['reason']}")
        for name, value in expected.state.items():
            other = federation.state[name].double()
            scale = value.double().norm().clamp_min(1e-3)
            if (value.double() - other).norm() / scale > ENGINE_TOLERANCE:
                raise case.fail(f"the {title} engine gives another '{name}' than the reference")


def stacked_engine(_case: Case, federation: Federation) -> StackedClients | None:
    """Return the engine that trains clients side by side on a CPU, if this method allows it."""
    if stacking_obstacle(federation.task) is not None:
        return None
    return StackedClients(federation.task, 3)


def captured_engine(case: Case, federation: Federation) -> CudaEngine:
    """Return the CUDA engine, which runs without captures on a CPU."""
    options = EngineOptions(precision="fp32", streams=2, device="cpu")
    engine = CudaEngine(federation.task, options, 5, compiled=False)
    try:
        engine.trial(Down(0, checked.broadcast(federation.method, federation.state)))
    except Exception as error:
        engine.close()
        raise case.fail(f"a step cannot be captured: {type(error).__name__}: {error}") from error
    return engine


ENGINES: dict[str, Callable[[Case, Federation], Any]] = {
    "cpu": stacked_engine,
    "cuda": captured_engine,
}


def check_resume(case: Case) -> None:
    """A run that is resumed from a checkpoint ends with the same bits."""
    expected, _ = case.finished.snapshot()
    tensors, header = unpack(pack(*case.after_one_round.snapshot()))
    resumed = case.federation()
    resumed.restore(tensors, header)
    name = first_difference(expected, result_of(resumed))
    if name is not None:
        raise case.fail(f"a resumed run differs in '{name}' from one that was never interrupted")


def check_wire(case: Case) -> None:
    """A reply survives the transfer between two processes bit for bit."""
    reply = case.replies[0]
    received = to_result(Message(*unpack(pack(*result_message(reply)))))
    assert isinstance(received, Reply)
    for part in ("tensors", "model", "notes"):
        name = first_difference(dict(getattr(reply.up, part)), dict(getattr(received.up, part)))
        if name is not None:
            raise case.fail(f"'{name}' of its reply changes on the way to another process")
    name = first_difference(reply.memory, received.memory)
    if name is not None:
        raise case.fail(f"'{name}' of its memory changes on the way to another process")


CHECKS: dict[str, Callable[[Case], None]] = {
    "description": check_description,
    "rounds": check_rounds,
    "seed": check_seed,
    "no value is read": check_no_value_is_read,
    "no chance": check_no_chance,
    "padding": check_padding,
    "only padding": check_only_padding,
    "per image": check_per_image,
    "reply": check_reply,
    "order": check_order,
    "weights": check_weights,
    "averages": check_averages,
    "census": check_census,
    "rounds ahead": check_rounds_ahead,
    "broadcast": check_broadcast,
    "scores": check_scores,
    "server's model": check_server_model,
    "engines": check_engines,
    "resume": check_resume,
    "wire": check_wire,
}
"""All checks by name, in the order in which `check_method` runs them."""


def check_method(
    method: type[Method] | str,
    settings: Mapping[str, Any] | None = None,
    *,
    only: str | None = None,
) -> None:
    """Run all checks on a method: a class at the top level of a module, or a name.

    ``settings`` sets options by their names in the config, such as ``{"method.mu": 0.1}``; ``only``
    is the name of a single check in `CHECKS`.
    """
    if only is not None and only not in CHECKS:
        raise CafedclError(
            f"only = '{only}': there is no such check; {nearest(only, list(CHECKS))}"
        )
    if not isinstance(method, str | type):
        raise CafedclError(f"{type(method).__name__}: give the class, and not an instance of it")
    name = method if isinstance(method, str) else f"{method.__module__}:{method.__qualname__}"
    case = Case(name, dict(settings or {}))
    for title, check in CHECKS.items():
        if only not in (None, title):
            continue
        try:
            check(case)
        except ConformanceError:
            raise
        except CafedclError as error:
            raise ConformanceError(str(error)) from None
        except Exception as error:
            # A method's results are used far from it, so the error may not name it.
            raise case.fail(f"the check '{title}' ends with {in_words(error)}") from error
