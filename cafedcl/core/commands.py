"""Commands that messages advise, ready to be pasted into a shell."""

import shlex
from pathlib import Path


def cafedcl_command(*words: object) -> str:
    """Return a `cafedcl` command; a path with spaces or quotes in it is quoted."""
    return shlex.join(["cafedcl", *map(str, words)])


def retrain_command(run: Path, *options: str) -> str:
    """Return the command that trains a run once more, in a new folder."""
    return cafedcl_command("run", run / "config.toml", *options, "--out", "NEW")
