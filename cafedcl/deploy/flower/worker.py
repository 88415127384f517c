"""The process that holds a site's PyTorch, data and memory, and answers over a socket only its
owner may open.
"""

import os
import socket
import sys
from pathlib import Path

from cafedcl.deploy.flower.link import receive, send
from cafedcl.deploy.flower.site import Site
from cafedcl.deploy.places import SiteOptions, read_site

PULSE = 1.0
"""Seconds between two looks at whether the parent is still there."""


def site_of(folder: Path, options: SiteOptions) -> tuple[Site, int | None]:
    """Return the site that a folder describes, and which simulated client it is, if it is one."""
    site = Site(folder, options.name, options.data, options.device, options.plugins)
    return site, None if options.data else options.client


def serve(path: Path, site: Site, client: int | None) -> None:
    """Answer one request after another until the parent is gone."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen()
        listener.settimeout(PULSE)
        while os.getppid() == parent:
            try:
                line, _ = listener.accept()
            except TimeoutError:
                continue
            with line:
                line.settimeout(None)
                try:
                    send(line, site.answer(receive(line), client))
                except (OSError, ValueError) as error:
                    print(f"warning: a request was cut off: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    serve(Path(sys.argv[1]), *site_of(place, read_site(place)))
