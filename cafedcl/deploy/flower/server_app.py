"""The Flower server app of a simulation, and federations whose clients are Flower's nodes."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.flower.engine import ClientNodes, FlowerEngine
from cafedcl.deploy.flower.mail import Mail
from cafedcl.deploy.flower.messages import Terms
from cafedcl.deploy.flower.roster import Roster, SiteKeys, T, read_simulated_client
from cafedcl.deploy.flower.uncounted import UncountedReplies
from cafedcl.deploy.folders import read_server
from cafedcl.deploy.population import EnrolmentLimits, Population, prepare_server
from cafedcl.federation import runs
from cafedcl.federation.callback import Callback
from cafedcl.federation.checkpoint import frozen_digest
from cafedcl.federation.journal import Journal
from cafedcl.federation.privacy import check_private_method
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.build import Setup, prepare
from cafedcl.task.resolve import gather

app = ServerApp()
RESUME_WAIT = 30.0
"""The most seconds that a resumed run waits for its sites."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run that the run config names."""
    options = context.run_config
    journal = Journal(Path(str(options["out"])), resumed=bool(options["resume"]))
    try:
        host = GridHost(grid, journal.say)
        if options["resume"]:
            runs.resume(journal.path, [journal], journal.say, host)
        else:
            runs.start(read_config(options), journal.path, [journal], ["flwr", "run"], host)
    except CafedclError as error:
        journal.end(str(error))
        raise
    except BaseException as error:
        journal.end(f"{type(error).__name__}: {error}")
        raise
    journal.end(None)


def read_config(options: Mapping[str, Any]) -> Config:
    """Return the config for Flower's run config, whose keys are the flags of `cafedcl run`."""
    flags = {
        name: options[name] or None for name in ("method", "data", "split", "clients", "rounds")
    }
    seed = options["seed"] if options["seed"] >= 0 else None
    settings = [*str(options["settings"]).split(), "engine.name=flower"]
    return gather(options["config-file"] or None, seed=seed, settings=settings, **flags)


class GridHost:
    """Makes federations whose clients are the nodes of a Flower grid.

    ``deployment`` is the server's folder; it is empty in a simulation.
    """

    def __init__(self, grid: Grid, say: Callable[[str], None], deployment: str = "") -> None:
        self.grid = grid
        self.say = say
        self.deployment = deployment

    def __call__(
        self, config: Config, callbacks: Sequence[Callback], folder: RunFolder | None
    ) -> Federation:
        """Return the federation of a config; a resumed run finds its sites in its folder."""
        mail = Mail(self.grid, config.engine.deadline)
        stored = folder.environment().get("flower", {}) if folder else {}
        run = stored.get("run") or secrets.token_hex(8)
        if config.at_sites:
            federation, sites = self._remote(config, callbacks, mail, run, folder)
        else:
            federation = self._simulated(config, callbacks, mail, run, folder)
            sites = []
        federation.about = {"flower": {"run": run, "sites": sites, "deployment": self.deployment}}
        return federation

    def _simulated(
        self,
        config: Config,
        callbacks: Sequence[Callback],
        mail: Mail,
        run: str,
        folder: RunFolder | None,
    ) -> Federation:
        setup = prepare(config)
        keys = SiteKeys(self.deployment)
        roster = Roster(mail, setup.config, read_simulated_client, self.say, keys)
        self._wait_for_sites(roster, setup.config, folder)
        terms = Terms(setup.config, None, run, frozen_digest(setup.task))

        def nodes() -> dict[int, int]:
            return {client: node for node, client in roster.online()}

        return self._federation(setup, callbacks, mail, terms, nodes)

    def _remote(
        self,
        config: Config,
        callbacks: Sequence[Callback],
        mail: Mail,
        run: str,
        folder: RunFolder | None,
    ) -> tuple[Federation, list[str]]:
        # Before any site is asked to report anything.
        check_private_method(config)
        limits = self._limits()
        roster = Roster(mail, config, limits.read, self.say, SiteKeys(self.deployment))
        stored = stored_population(folder) if folder else None
        if stored:
            roster.check = stored.check
        found = self._wait_for_sites(roster, config, folder)
        untested = sorted(site.site for site in found if not site.tested.any())
        if untested:
            fewest = config.release.settled(own_data=True).fewest
            self.say(
                f"no scores from {', '.join(untested)}: no class has {fewest} test images there, "
                "the smallest number that is reported (release.fewest)"
            )
        wanted = config.federation.clients
        if folder is None and 0 < wanted < len(found):
            self.say(
                f"all {len(found)} connected sites take part; federation.clients = {wanted} says "
                "how many are waited for"
            )
        population = stored or Population.of(found, limits.classes)
        # A site that comes back must have the images that it enrolled with.
        roster.check = population.check
        for remark in population.remarks:
            self.say(f"warning: {remark}")
        if population.unreported:
            self.say(
                f"warning: no site reports training images of {', '.join(population.unreported)}: "
                "there are fewer than release.fewest, so no model learns them"
            )
        setup = prepare_server(config, population)
        census = setup.task.clients.census
        assigned = population.assignment(population.sites[0], census)
        terms = Terms(setup.config, assigned, run, frozen_digest(setup.task))

        def nodes() -> dict[int, int]:
            return {
                population.sites.index(site.site): node
                for node, site in roster.online()
                if site.site in population.sites
            }

        return self._federation(setup, callbacks, mail, terms, nodes), list(population.sites)

    def _limits(self) -> EnrolmentLimits:
        """Return what sites may enrol with, from the deployment's config."""
        if not self.deployment:
            return EnrolmentLimits()
        options = read_server(Path(self.deployment))
        return EnrolmentLimits(options.classes, options.images_per_class)

    def _wait_for_sites(
        self, roster: Roster[T], config: Config, folder: RunFolder | None
    ) -> list[T]:
        """Wait for the sites; a resumed run eventually starts without the missing ones."""
        patience = config.engine.deadline
        if folder is not None:
            patience = min(patience, RESUME_WAIT)
        wanted = config.federation.clients_wanted
        keys = roster.keys.number
        # A resumed run continues without sites that were removed.
        if folder is None and 0 < keys < wanted:
            raise CafedclError(
                f"federation.clients = {wanted}: only {keys} sites have keys that the server "
                f"admits; set federation.clients = {keys}, or admit the others with "
                "`cafedcl deploy admit`"
            )
        found = roster.wait(wanted, patience)
        if folder is None and len(found) < wanted:
            raise CafedclError(
                f"{len(found)} of {wanted} sites connected within "
                f"{patience:g} s (engine.deadline); start the others, or lower federation.clients"
            )
        return found

    def _federation(
        self,
        setup: Setup,
        callbacks: Sequence[Callback],
        mail: Mail,
        terms: Terms,
        nodes: ClientNodes,
    ) -> Federation:
        uncounted = UncountedReplies()
        engine = FlowerEngine(setup.task, terms, mail, nodes, uncounted)
        return Federation(setup, [*callbacks, uncounted], engine)


def stored_population(folder: RunFolder) -> Population:
    """Return the population that a run started with."""
    arrays, header = folder.data()
    channels, height, width = header["shape"]
    return Population(
        sites=tuple(folder.environment()["flower"]["sites"]),
        names=tuple(header["names"]),
        shape=(channels, height, width),
        counts=torch.from_numpy(arrays["counts"]),
        mean=torch.from_numpy(arrays["mean"]),
        std=torch.from_numpy(arrays["std"]),
        tested=torch.from_numpy(arrays["tested"]) if "tested" in arrays else None,
    )
