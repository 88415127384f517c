"""The options of what a client reports to the server besides its model."""

from dataclasses import dataclass, replace

from cafedcl.config.options import option

SAFE_FEWEST = 5
"""The smallest number of images of a class that a site reports by default."""
CHOICES = ("auto", "exact", "rounded", "withheld")


@dataclass(frozen=True)
class ReleaseOptions:
    """What clients report. The defaults are safe where sites have data of their own."""

    fewest: int = option(
        0,
        "smallest number of a client's images for which a class is reported at all: its count, "
        "prototype, confidence and test results. 0: "
        f"{SAFE_FEWEST} where sites have data of their own, else 1",
        low=0,
        high=1_000_000,
    )
    counts: str = option(
        "auto",
        "class counts that clients report: exact, rounded to a multiple of grid, or withheld "
        "(every reported class counts as fewest images). auto: rounded where sites have data of "
        "their own, else exact",
        choices=CHOICES,
    )
    grid: int = option(
        10, "rounded counts are multiples of this number, never below it", low=1, high=1_000_000
    )
    prototypes: str = option(
        "auto",
        "prototypes of unit features: as the method makes them (raw), or scaled to length 1 "
        "(unit), which hides how many images they average. auto: unit where sites have data of "
        "their own, else raw",
        choices=("auto", "raw", "unit"),
    )
    notes: str = option(
        "auto",
        "whether clients send notes, which only people read, and how long they took. auto: off "
        "where sites have data of their own, else on",
        choices=("auto", "on", "off"),
    )

    def settled(self, own_data: bool) -> "ReleaseOptions":
        """Return the options with automatic choices made; ``own_data``: sites have own data."""
        safe = {"fewest": SAFE_FEWEST, "counts": "rounded", "prototypes": "unit", "notes": "off"}
        plain = {"fewest": 1, "counts": "exact", "prototypes": "raw", "notes": "on"}
        chosen = {
            name: value
            for name, value in (safe if own_data else plain).items()
            if getattr(self, name) in (0, "auto")
        }
        return replace(self, **chosen)  # type: ignore[arg-type]

    @property
    def is_plain(self) -> bool:
        """Whether clients report all that the method asks for. The options must be settled."""
        told = (self.fewest, self.counts, self.prototypes, self.notes)
        return told == (1, "exact", "raw", "on")
