"""Commands that messages advise, ready to be pasted into a shell."""

import shlex


def cafedcl_command(*words: object) -> str:
    """Return a `cafedcl` command; a path with spaces or quotes in it is quoted."""
    return shlex.join(["cafedcl", *map(str, words)])
