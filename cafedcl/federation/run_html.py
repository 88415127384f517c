"""A run in a few words, and as HTML for notebooks: its scores and its curve."""

from collections.abc import Sequence
from html import escape
from typing import Any

SHOWN = {
    "accuracy": "accuracy",
    "balanced": "balanced accuracy",
    "worst_class": "worst class",
    "client_mean": "mean of the clients",
    "client_std": "std across clients",
    "client_worst": "worst tenth of the clients",
    "auroc": "AUROC",
    "ece": "calibration error",
}
WIDTH = 320
HEIGHT = 80


def last_scores(records: Sequence[dict[str, Any]], part: str) -> dict[str, float]:
    """Return the last scores of the server's model or of clients' own; empty without any."""
    for line in reversed(records):
        if line.get(part):
            return {name: value for name, value in line[part].items() if value is not None}
    return {}


def rounds_done(records: Sequence[dict[str, Any]]) -> int:
    """Return how many rounds a model was trained for; the metrics of some may be lost."""
    return int(records[-1]["round"]) + 1 if records else 0


def short_text(label: str, data: str, records: Sequence[dict[str, Any]], rounds: int) -> str:
    """Return a run in one line."""
    words = [f"{label} on {data}", f"{rounds_done(records)} of {rounds} rounds"]
    server = last_scores(records, "server")
    own = last_scores(records, "own")
    if "accuracy" in server:
        words.append(f"accuracy {100 * server['accuracy']:.1f} %")
    if "balanced" in server:
        words.append(f"balanced {100 * server['balanced']:.1f} %")
    if not server and "client_mean" in own:
        words.append(f"own models {100 * own['client_mean']:.1f} %")
    return ", ".join(words)


def html(title: str, records: Sequence[dict[str, Any]], recall: dict[str, float]) -> str:
    """Return a run as HTML: a table of scores, the recall per class, and the curve."""
    server = last_scores(records, "server")
    own = last_scores(records, "own")
    heads = "".join(f"<th>{name}</th>" for name in ("", "server’s model, %", "own models, %"))
    rows = [
        f"<tr><td>{title_}</td><td>{percent(server, name)}</td><td>{percent(own, name)}</td></tr>"
        for name, title_ in SHOWN.items()
        if name in server or name in own
    ]
    classes = ", ".join(f"{escape(name)} {100 * value:.1f}" for name, value in recall.items())
    recalls = f"<p>recall per class in %: {classes}</p>" if recall else ""
    part = "server.accuracy" if server else "own.client_mean"
    return (
        f"<div><b>{escape(title)}</b>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"{recalls}{curve(records, part)}</div>"
    )


def percent(scores: dict[str, float], name: str) -> str:
    """Return a score in %, or a dash."""
    return f"{100 * scores[name]:.1f}" if name in scores else "–"


def curve(records: Sequence[dict[str, Any]], path: str) -> str:
    """Return a score over rounds as a small drawing; empty for fewer than two rounds."""
    part, _, name = path.partition(".")
    values = [line[part][name] for line in records if (line.get(part) or {}).get(name) is not None]
    if len(values) < 2:
        return ""
    step = WIDTH / (len(values) - 1)
    points = " ".join(
        f"{i * step:.1f},{HEIGHT - HEIGHT * value:.1f}" for i, value in enumerate(values)
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT + 4}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}" '
        f'role="img" aria-label="{path} over rounds">'
        f'<polyline points="{points}" fill="none" stroke="#0A7ABF" stroke-width="2"/></svg>'
    )
