"""What a site keeps of a run between rounds, and its own model, which only the site has."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cafedcl.core.contract import TICKET
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.core.printable import printable
from cafedcl.core.tensors import Tensors, pack_with_digest, unpack_checked
from cafedcl.federation.result import Run
from cafedcl.federation.run_files import reason
from cafedcl.federation.run_folder import RunFolder


@dataclass(frozen=True)
class MemoryFolder:
    """One client's memory in one run, a file per round.

    The server stores only a ticket: the number of the round in which the memory was saved.
    """

    folder: Path

    @classmethod
    def of(cls, site: Path, run: str, client: int | str) -> "MemoryFolder":
        """Return the folder of a client in a site's folder; ``run`` is the run's id."""
        return cls(site / "memory" / run / str(client))

    def load(self, ticket: Tensors) -> Tensors:
        """Return the memory of the ticket's round; if it is lost, warn and start without memory."""
        if not ticket:
            return {}
        file = self.file(int(ticket[TICKET]))
        try:
            return unpack_checked(file.read_bytes())[0]
        except (OSError, ValueError) as error:
            line = f"warning: {file}: cannot be read ({error}); this client starts without memory"
            print(printable(line), file=sys.stderr, flush=True)
            return {}

    def save(self, round: int, memory: Tensors, reach: int, given: Tensors) -> Tensors:
        """Save the memory and return its ticket; files that can no longer be needed are deleted.

        These are files older than ``reach`` rounds, and those of replies that the server did not
        count: they are newer than ``given``, the ticket that came with this round's request.
        """
        if not memory:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.file(round), pack_with_digest(memory, {"round": round}))
        earlier = {int(file.stem): file for file in self.folder.glob("*.safetensors")}
        del earlier[round]
        counted = int(given[TICKET]) if given else -1
        lost = [number for number in earlier if number > counted]
        old = sorted(number for number in earlier if number <= counted and number < round - reach)
        # The newest old file stays: it is this client's memory at the oldest checkpoint.
        for number in (*lost, *old[:-1]):
            earlier[number].unlink()
        return {TICKET: torch.tensor(round)}

    def file(self, round: int) -> Path:
        """Return the file of a round."""
        return self.folder / f"{round:06d}.safetensors"


def with_site(run: Run, site: Path) -> tuple[Run, int]:
    """Return a run with what a site keeps of it, and the site's number among the clients.

    ``run`` is a copy of the run folder that the server wrote.
    """
    about = RunFolder(run.path).environment() if run.path else {}
    name = str(about.get("flower", {}).get("run", ""))
    # The name comes from the server, and must not lead out of the folder.
    if not name.isalnum():
        raise CafedclError(f"{run.path or 'this run'}: no run of a deployment; leave out --site")
    if not (site / "site.toml").is_file():
        raise CafedclError(f"{site}: no folder of a site (it has no site.toml)")
    folders = [folder.name for folder in (site / "memory" / name).glob("*")]
    tickets = {client: its[TICKET] for client, its in run.memories.items() if TICKET in its}
    clients = [client for client in tickets if str(client) in folders]
    if len(clients) > 1:
        raise CafedclError(f"{site}: memory/{name} is of several sites")
    if not clients:
        raise CafedclError(
            f"{site}: it keeps no model of the run {run.path}: the site took part in no round, its "
            "memory was deleted, or the run has neither personal weights nor store.own = true"
        )
    (client,) = clients
    file = MemoryFolder.of(site, name, client).file(int(tickets[client]))
    try:
        memory, _ = unpack_checked(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CafedclError(f"{file}: cannot be read: {reason(error)}") from None
    return replace(run, memories={**run.memories, client: memory}), client
