"""What a site insists on, whatever the config of a run says."""

from dataclasses import dataclass

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError


class RefusalError(CafedclError):
    """Why a site does not do what the server asks.

    It is sent to the server, so it must not tell more of the site's data than replies do.
    """


@dataclass(frozen=True)
class SiteRules:
    """Rules of a site with data of its own; by default it accepts every run."""

    fewest: int = 0
    """The smallest number of images for which it reports a class."""
    details: bool = True
    """Whether a run may ask for exact counts, raw prototypes or notes."""
    secure: bool = False
    """Whether it takes part in secure sums only."""

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
        if self.secure and not config.privacy.secure:
            return (
                "this site takes part in secure sums only (secure in its site.toml); set "
                "privacy.kind = clients and privacy.secure = true in the run"
            )
        return None
