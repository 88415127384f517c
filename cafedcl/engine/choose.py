"""Which engine runs a config."""

from cafedcl.engine.base import Engine
from cafedcl.engine.eager import Eager
from cafedcl.engine.workers import Workers
from cafedcl.setup import Setup


def choose_engine(setup: Setup) -> Engine:
    """Return the engine for a config: eager, in worker processes on a CPU where that is faster."""
    config, bench = setup.config, setup.bench
    if bench.device.type != "cpu" or len(bench.shards) < 2:
        return Eager(bench)
    participants = max(1, round(config.federation.participation * len(bench.shards)))
    return Workers(bench, config, config.engine.workers, participants * config.federation.rounds)
