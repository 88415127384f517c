"""Which engine runs a config."""

from collections.abc import Callable

from torch import nn

from cafedcl.contract import Down
from cafedcl.engine.base import Bench, Engine
from cafedcl.engine.eager import Eager
from cafedcl.engine.graphs import Graphs, obstacle
from cafedcl.engine.workers import Workers
from cafedcl.pack import MODEL, moved, prefixed
from cafedcl.setup import Setup

COMPILED = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)
"""Layers that plain kernels are slow at."""
PAYS_OFF = 2_000_000
"""Training images of a run from which compiling (about half a minute) is faster."""


def choose_engine(setup: Setup, notice: Callable[[str], None]) -> Engine:
    """Return the engine for a config; ``notice`` is told in one line if it is not the one that was asked for."""
    config, bench = setup.config, setup.bench
    participants = max(1, round(config.federation.participation * len(bench.shards)))
    visits = participants * config.federation.rounds
    if config.engine.name == "graphs":
        return _graphs(setup, visits, notice)
    if bench.device.type != "cpu" or len(bench.shards) < 2:
        return Eager(bench)
    return Workers(bench, config, config.engine.workers, visits)


def _graphs(setup: Setup, visits: int, notice: Callable[[str], None]) -> Engine:
    bench, options = setup.bench, setup.config.engine
    reason = obstacle(bench.network)
    state = {**prefixed(MODEL, bench.shared()), **moved(setup.state, bench.device)}
    attempts = (
        [True, False] if options.compile == "on" or (options.compile == "auto" and pays_off(bench, visits)) else [False]
    )
    for compiled in attempts if reason is None else ():
        engine = Graphs(bench, options, compiled=compiled)
        try:
            engine.trial(Down(0, bench.method.broadcast(state)))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            if compiled:
                notice(f"the encoder cannot be compiled here, so it runs as it is ({reason})")
            continue
        return engine
    notice(f"steps cannot be captured, so clients train one after another in fp32 ({reason})")
    return Eager(bench)


def pays_off(bench: Bench, visits: int) -> bool:
    """Return whether a run has the layers and the length that compiling is worth its time for."""
    images = visits * bench.train.epochs * bench.typical
    return images >= PAYS_OFF and any(isinstance(module, COMPILED) for module in bench.network.modules())
