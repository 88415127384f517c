"""Which engine runs a config."""

from collections.abc import Callable

from torch import nn

from cafedcl.core.contract import Down
from cafedcl.core.errors import CafedclError
from cafedcl.engine.base import Engine
from cafedcl.engine.cpu.groups import obstacle as obstacle_to_stack
from cafedcl.engine.cpu.workers import Workers
from cafedcl.engine.cuda.engine import Graphs, obstacle
from cafedcl.engine.eager import Eager
from cafedcl.task.build import Setup
from cafedcl.task.task import Bench

SLOW = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)
"""Layers that plain kernels are slow at."""
COMPILE_TIME, STEP_GAIN, IMAGE_GAIN = 40.0, 5e-5, 2e-5
"""Seconds that compiling takes, and that it saves per step, and per image in a network with slow layers."""


def choose_engine(setup: Setup, notice: Callable[[str], None]) -> Engine:
    """Return the engine for a config; ``notice`` is told in one line if it is not the one that was asked for."""
    config, bench = setup.config, setup.bench
    participants = max(1, round(config.federation.participation * len(bench.shards)))
    if config.engine.name == "flower":
        raise CafedclError("engine.name = flower: a Federation is made by Flower's server; use cafedcl.run")
    if config.engine.name == "graphs":
        return _graphs(setup, participants, notice)
    if bench.device.type != "cpu" or len(bench.shards) < 2:
        return Eager(bench)
    reason = obstacle_to_stack(bench)
    if config.engine.stack > 1 and reason is not None:
        notice(f"clients cannot train side by side, so they do so one after another ({reason})")
    return Workers(bench, config, config.engine.workers, participants * config.federation.rounds)


def _graphs(setup: Setup, participants: int, notice: Callable[[str], None]) -> Engine:
    bench, options = setup.bench, setup.config.engine
    reason = obstacle(bench.network)
    steps = participants * setup.config.federation.rounds * bench.steps(bench.typical)
    wanted = pays_off(bench, steps) if options.compile == "auto" else options.compile == "on"
    for compiled in ([True, False] if wanted else [False]) if reason is None else ():
        engine = Graphs(bench, options, participants, compiled=compiled)
        try:
            engine.trial(Down(0, bench.method.broadcast(setup.start())))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            if compiled:
                notice(f"the encoder cannot be compiled here, so it runs as it is ({reason})")
            continue
        return engine
    notice(f"steps cannot be captured, so clients train one after another in fp32 ({reason})")
    return Eager(bench)


def pays_off(bench: Bench, steps: int) -> bool:
    """Return whether so many steps gain more by compiling than it takes."""
    images = steps * bench.batch_size(bench.typical)
    slow = any(isinstance(module, SLOW) for module in bench.network.modules())
    return steps * STEP_GAIN + images * IMAGE_GAIN * slow > COMPILE_TIME
