"""The rules of a site, which hold whatever the config of a run says."""

from dataclasses import dataclass

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.methods import find_method


class RefusalError(CafedclError):
    """Why a site does not do what the server asks.

    It is sent to the server, so it must not reveal more about the site's data than replies do.
    """


@dataclass(frozen=True)
class SiteRules:
    """Rules of a site with data of its own; by default it accepts every run."""

    fewest: int = 0
    """The smallest number of images for which it reports a class."""
    details: bool = True
    """Whether a run may ask for exact counts, raw prototypes or notes, and whether it may use a
    method that reveals as much.
    """
    grid: int = 1
    """The smallest number to whose multiples counts are rounded, unless details are allowed."""
    secure: bool = False
    """Whether it takes part only in secure sums."""

    def problem(self, config: Config) -> str | None:
        """Return why the site does not take part in a run, or None."""
        release = config.release.settled(own_data=True)
        if release.fewest < self.fewest:
            return (
                f"the run wants classes with {release.fewest} images reported (release.fewest), "
                f"this site reports those with {self.fewest} at least (fewest in its site.toml)"
            )
        asked = {"counts": "exact", "prototypes": "raw", "notes": "on"}
        for name, detailed in asked.items():
            if not self.details and getattr(release, name) == detailed:
                return (
                    f"the run has release.{name} = {detailed}; allow it with details = true in "
                    "this site's site.toml"
                )
        if not self.details and release.counts == "rounded" and release.grid < self.grid:
            return (
                f"the run has release.grid = {release.grid}, this site rounds its counts to "
                f"multiples of {self.grid} at least (grid in its site.toml)"
            )
        reveals = find_method(config.method.name)[0].reveals
        if reveals and not self.details:
            return (
                f"method {config.method.name}: clients send {reveals}; allow it with "
                "details = true in this site's site.toml"
            )
        if self.secure and not config.privacy.secure:
            return (
                "this site takes part in secure sums only (secure in its site.toml); set "
                "privacy.kind = clients and privacy.secure = true in the run"
            )
        return None
