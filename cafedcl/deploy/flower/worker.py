"""A site's worker process: it holds PyTorch, the data and the model, and answers the server.

It runs as ``python -m cafedcl.deploy.flower.worker FOLDER RUNTIME``: the site's folder, and the
folder with the keys and the address of its SuperNode's Runtime API.
"""

import sys
from pathlib import Path

from cafedcl.core.errors import CafedclError
from cafedcl.core.printable import printable
from cafedcl.deploy.flower.runtime import Runtime, work_off
from cafedcl.deploy.flower.site import Site
from cafedcl.deploy.folders import SiteOptions, read_site
from cafedcl.deploy.rules import SiteRules
from cafedcl.deploy.site import ADDRESS, CA, READY, SECRET
from cafedcl.device.choose import missing_device


def site_of(folder: Path, options: SiteOptions) -> tuple[Site, int | None]:
    """Return a folder's site, and its client number if it holds a simulated shard."""
    rules = SiteRules(
        fewest=options.fewest, details=options.details, grid=options.grid, secure=options.secure
    )
    site = Site(folder, options.name, options.data, options.device, options.plugins, rules)
    client = None if options.data else options.client
    return site, client


def main(folder: Path, runtime: Path) -> None:
    """Answer requests forever."""
    options = read_site(folder)
    # Otherwise the site would be online, and fail in every run.
    missing = missing_device(options.device)
    if missing:
        raise CafedclError(
            f"{folder / 'site.toml'}: device = {options.device}: {missing}; set another one, such "
            "as auto"
        )
    site, client = site_of(folder, options)

    def connect() -> Runtime:
        # Read anew every time: a restarted SuperNode has another port.
        address = (runtime / ADDRESS).read_text(encoding="utf-8")
        return Runtime(address, (runtime / SECRET).read_bytes(), (runtime / CA).read_bytes())

    def say(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    (runtime / READY).touch()
    work_off(connect, lambda parts: site.answer(parts, client), say)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except CafedclError as error:
        sys.exit(printable(f"error: {error}"))
