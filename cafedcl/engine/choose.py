"""Which engine runs a config."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down
from cafedcl.core.errors import CafedclError
from cafedcl.core.steps import step
from cafedcl.engine.base import Engine
from cafedcl.engine.cpu.groups import choose_size, stacking_obstacle
from cafedcl.engine.cpu.workers import CpuEngine
from cafedcl.engine.cuda.engine import CudaEngine, capture_obstacle
from cafedcl.engine.cuda.several import SeveralGpus
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.methods import checked
from cafedcl.task.build import Setup, prepare
from cafedcl.task.task import Task, arithmetic

SLOW_LAYERS = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)
"""Layers whose plain kernels are slow."""
COMPILE_SECONDS = 20.0
COMPILE_SECONDS_OF_SLOW_LAYERS = 40.0
"""How long compiling takes, in a network without slow layers and in one with them."""
SECONDS_SAVED_PER_STEP = 1e-4
SECONDS_SAVED_PER_IMAGE = 2e-5
"""What compiling saves per image in a network with slow layers."""

TF32_ADVICE = "TensorFloat32 tensor cores"
"""How the compiler's warning begins."""

Notice = Callable[[str], None]


def settle_stack(setup: Setup) -> Config:
    """Return the config with `engine.stack = 0` replaced by the number that is chosen for it.

    How many clients train side by side decides the last bits, so the number is part of the run.
    """
    config = setup.config
    if config.engine.stack:
        return config
    return replace(config, engine=replace(config.engine, stack=choose_size(setup.task)))


def choose_engine(setup: Setup, notice: Notice) -> Engine:
    """Return the engine for a config; ``notice`` gets one line if it is not the requested one."""
    task = setup.task
    for note in task.network.notes:
        notice(note)
    config = settle_stack(setup)
    clients = len(task.clients.shards)
    participants = config.federation.participants(clients)
    if config.engine.name == "flower":
        raise CafedclError(
            "engine.name = flower: a Federation is made by Flower's server; use cafedcl.run"
        )
    limited = "" if task.release.options.is_plain else "[release] limits what they report"
    if task.private_steps:
        limited = "[privacy] needs the gradient of every image"
    if limited:
        if config.engine.name != "reference":
            notice(f"clients train one after another, because {limited}")
        return ReferenceEngine(task)
    if config.engine.name == "cuda":
        return _cuda_engine(setup, participants, notice)
    if config.engine.name == "reference" or clients < 2:
        return ReferenceEngine(task)
    reason = stacking_obstacle(task)
    if config.engine.stack > 1 and reason is not None:
        notice(f"clients train one after another, not side by side ({reason})")
    return CpuEngine(task, config, config.engine.workers, participants * config.federation.rounds)


def _cuda_engine(setup: Setup, participants: int, notice: Notice) -> Engine:
    """Return the CUDA engine, compiled if that pays, or the reference if it cannot capture."""
    task = setup.task
    options = setup.config.engine
    reason = capture_obstacle(task.network)
    if reason is None:
        steps = (
            participants
            * setup.config.federation.rounds
            * task.schedule.steps(task.schedule.typical)
            * options.alike
        )
        compiled = options.compile == "on"
        if options.compile == "auto":
            compiled = compiling_pays_off(task, steps)
        if compiled:
            # Single precision without TF32 is deliberate here, but the compiler advises against it.
            warnings.filterwarnings("ignore", TF32_ADVICE, UserWarning)
            engine, reason = _try_captured(setup, participants, compiled=True)
            if engine is not None:
                return engine
            notice(f"the encoder cannot be compiled here, so it runs uncompiled ({reason})")
        engine, reason = _try_captured(setup, participants, compiled=False)
        if engine is not None:
            return engine
    notice(f"steps cannot be captured, so clients train one after another in fp32 ({reason})")
    return ReferenceEngine(task)


def _try_captured(
    setup: Setup, participants: int, *, compiled: bool
) -> tuple[CudaEngine | SeveralGpus | None, str | None]:
    """Return an engine that has captured a first step, or why that failed."""
    what = "compiling the training step" if compiled else "capturing the training step"
    expected = compile_seconds(setup.task) if compiled else 0.0
    engine = _captured(setup, participants, compiled=compiled)
    try:
        # As in a round: the compiler would compile everything again for another number of threads.
        with step(what, expected=expected), arithmetic(setup.task):
            engine.trial(Down(0, checked.broadcast(setup.task.method, setup.start())))
    except Exception as error:
        engine.close()
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return engine, None


def _captured(setup: Setup, participants: int, *, compiled: bool) -> CudaEngine | SeveralGpus:
    """Return the engine of one GPU, or one for each of several."""
    options = setup.config.engine
    share = math.ceil(participants / options.gpus)
    tasks = [setup.task]
    for device in further_devices(setup.task.device, options.gpus):
        config = replace(setup.config, engine=replace(options, device=device))
        # The same data and split, from the same seed, on another device.
        tasks.append(prepare(config).task)
    engines = [CudaEngine(task, options, share, compiled=compiled) for task in tasks]
    return engines[0] if len(engines) == 1 else SeveralGpus(engines)


def further_devices(first: torch.device, number: int) -> list[str]:
    """Return the names of the devices after the first; raise CafedclError if there are too few.

    On a host, which tests run the engine on, all devices are the host.
    """
    if first.type != "cuda":
        return [str(first)] * (number - 1)
    begin = first.index or 0
    there = torch.cuda.device_count()
    if begin + number > there:
        raise CafedclError(
            f"engine.gpus = {number}: there are {there - begin} CUDA devices from {first} on"
        )
    return [f"cuda:{index}" for index in range(begin + 1, begin + number)]


def compiling_pays_off(task: Task, steps: int) -> bool:
    """Return whether compiling saves more time over the given number of steps than it takes.

    The steps are those of all runs that share the compiled code.
    """
    saved = steps * SECONDS_SAVED_PER_STEP
    if has_slow_layers(task):
        images = steps * task.schedule.batch_size(task.schedule.typical)
        saved += images * SECONDS_SAVED_PER_IMAGE
    return saved > compile_seconds(task)


def compile_seconds(task: Task) -> float:
    """Return approximately how many seconds compiling the steps of a task takes."""
    return COMPILE_SECONDS_OF_SLOW_LAYERS if has_slow_layers(task) else COMPILE_SECONDS


def has_slow_layers(task: Task) -> bool:
    """Return whether plain kernels are slow at some layer of the network."""
    return any(isinstance(module, SLOW_LAYERS) for module in task.network.modules())
