"""``python -m cafedcl.cli.run_loop``: the process in which `cafedcl compare` executes its runs."""

import gc
import sys
import traceback

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
    """Give back what a run has left behind, so that it does not add up, nor reach the next run."""
    import torch

    # Captured graphs refer to themselves, so they go only with the garbage collector.
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    take_runs(execute)
