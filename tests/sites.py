"""Three sites with data of their own: which digits each has, and the options of a run on them."""

from typing import Any

HOLDS = {"a": [0, 1, 2, 3], "b": [3, 4, 5, 6], "c": [6, 7, 8, 9, 0]}


def settings(**more: Any) -> dict[str, Any]:
    return {"data__name": "sites", "split__kind": "auto", "engine__deadline": 5.0, **more}
