"""``python -m cafedcl.cli.run_loop``: the process in which `cafedcl compare` executes its runs."""

import gc
import sys
import traceback
from importlib import import_module

from cafedcl.cli.main import main
from cafedcl.compare.run_loop import take_runs


def execute(arguments: list[str]) -> int:
    """Execute a command as `cafedcl` would; return its exit status."""
    sys.argv = ["cafedcl", *arguments]
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    free_memory()
    return status


def free_memory() -> None:
    """Free what a run has left behind, so that it neither adds up nor affects the next run."""
    import torch

    # Captured graphs refer to themselves, so only the garbage collector frees them.
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    forget_compiled_code()


def forget_compiled_code() -> None:
    """Forget all compiled code if there is so much of it that the next run might not be compiled.

    Later runs share code with earlier ones. But PyTorch compiles a function only for a limited
    number of shapes and options, and then runs it uncompiled.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return
    import torch

    from cafedcl.engine.cuda.step import RECOMPILE_LIMIT

    if utils.counters["stats"]["unique_graphs"] >= RECOMPILE_LIMIT // 2:
        torch._dynamo.reset()
        utils.counters.clear()


def import_for_all_runs() -> None:
    """Import what every run needs and hide it from the garbage collector, which would scan it after
    each run. That takes as long as a short run.
    """
    import_module("cafedcl.api")
    gc.freeze()


if __name__ == "__main__":
    import_for_all_runs()
    take_runs(execute)
