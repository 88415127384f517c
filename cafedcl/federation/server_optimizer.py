"""The server's optimizer, which updates the model from the average of the clients' models.

The state's ``model/…`` is the model that is scored and saved. With an average over rounds, the live
model is kept in addition. The change of a round, mean − θ, takes the place of a gradient.
"""

import torch
from torch import Tensor

from cafedcl.config.server_options import ServerStepOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import MODEL, OPTIMIZER, Tensors, prefixed, under
from cafedcl.task.task import Task

LIVE = OPTIMIZER + "live/"
VELOCITY = OPTIMIZER + "velocity/"
SQUARES = OPTIMIZER + "squares/"
ROUNDS = OPTIMIZER + "rounds"
"""How many rounds are in the average, each discounted by its age."""


class ServerOptimizer:
    """Steps from one round's model to the next; without options it is the clients' average."""

    def __init__(self, options: ServerStepOptions, task: Task) -> None:
        self.options = options
        # Buffers are only averaged: an extrapolated running variance may become negative.
        parameters = dict(task.network.named_parameters())
        self.trained = [name for name in task.shared() if name in parameters]
        check_optimizer(options, task)

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, with what the optimizer keeps."""
        model = under(MODEL, state)
        kept: Tensors = {}
        if self.options.optimizer != "none":
            zeros = {name: torch.zeros_like(model[name]) for name in self.trained}
            kept |= prefixed(VELOCITY, zeros)
        if self.options.optimizer == "adam":
            floor = self.options.tau**2
            kept |= {SQUARES + n: torch.full_like(model[n], floor) for n in self.trained}
        if self.options.average:
            kept |= prefixed(LIVE, model)
            kept[ROUNDS] = torch.zeros((), dtype=torch.float64)
        return {**state, **kept}

    def live(self, state: Tensors) -> Tensors:
        """Return the state with the live model instead of the average over rounds."""
        return {**state, **prefixed(MODEL, under(LIVE, state))}

    def sent(self, state: Tensors) -> Tensors:
        """Return the state with the model that clients start from."""
        live = self.live(state)
        if self.options.optimizer != "acg":
            return live
        ahead = {
            MODEL + name: live[MODEL + name] + self.options.momentum * state[VELOCITY + name]
            for name in self.trained
        }
        return {**live, **ahead}

    def step(self, before: Tensors, after: Tensors) -> Tensors:
        """Return the state after a round.

        ``before`` is the state at the start of the round, ``after`` the one that the method made
        from it, whose model is the average of the clients' models.
        """
        if self.options.is_plain:
            return after
        changed: Tensors = {}
        for name in self.trained if self.options.optimizer != "none" else ():
            changed |= self._moved(name, before, after[MODEL + name])
        return self._averaged(before, {**after, **changed})

    def _moved(self, name: str, before: Tensors, mean: Tensor) -> Tensors:
        """Return the entries of one weight that change, and its new live value."""
        options = self.options
        rate = options.learning_rate
        beta = options.momentum
        old = before[LIVE + name] if options.average else before[MODEL + name]
        velocity = before[VELOCITY + name]
        if options.optimizer == "acg":
            # Clients started at θ + βm, so the mean is θ + βm + Δ, which is the new θ.
            velocity = mean - old
            return {MODEL + name: mean, VELOCITY + name: velocity}
        change = mean - old
        if options.optimizer == "momentum":
            velocity = beta * velocity + change
            return {MODEL + name: old + rate * velocity, VELOCITY + name: velocity}
        velocity = beta * velocity + (1 - beta) * change
        squares = options.beta2 * before[SQUARES + name] + (1 - options.beta2) * change.square()
        moved = old + rate * velocity / (squares.sqrt() + options.tau)
        return {MODEL + name: moved, VELOCITY + name: velocity, SQUARES + name: squares}

    def _averaged(self, before: Tensors, after: Tensors) -> Tensors:
        """Return the state with its model moved to the average over rounds, and the live model."""
        if not self.options.average:
            return after
        live = under(MODEL, after)
        rounds = self.options.average * before[ROUNDS] + 1
        average = {
            name: torch.lerp(before[MODEL + name], value, float(1 / rounds))
            for name, value in live.items()
            if value.is_floating_point()
        }
        return {**after, **prefixed(MODEL, average), **prefixed(LIVE, live), ROUNDS: rounds}


def check_optimizer(options: ServerStepOptions, task: Task) -> None:
    """Refuse an optimizer where the server has no model to step."""
    method = task.method.name
    if options.optimizer != "none" and not task.shared():
        raise CafedclError(
            f"server.optimizer = {options.optimizer}: {method} averages no model; "
            "leave it out, or choose a method that does"
        )
    if options.average and not task.has_server_model:
        raise CafedclError(
            f"server.average = {options.average:g}: {method} has no server model to score; "
            "leave it out, or choose a method that has one"
        )
