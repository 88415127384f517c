"""The Flower server: our Federation with the flower engine, started by Flower with a run config."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Header, Tensors
from cafedcl.deploy.flower.engine import FlowerEngine, Where
from cafedcl.deploy.flower.mail import Mail
from cafedcl.deploy.flower.messages import Terms
from cafedcl.deploy.flower.roster import Roster, T, simulated
from cafedcl.deploy.places import node_names
from cafedcl.deploy.population import Enrolled, Population, is_remote, prepare_server
from cafedcl.federation import runs
from cafedcl.federation.journal import Journal
from cafedcl.federation.rounds import Federation, Watcher
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.build import Setup, prepare
from cafedcl.task.resolve import gather

app = ServerApp()
PATIENCE = 30.0
"""Seconds that a run that goes on waits for its sites."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the federation that the run config names."""
    options = context.run_config
    journal = Journal(Path(str(options["out"])))
    try:
        host = GridHost(grid, journal, str(options["deployment"]))
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
    """Return the config that Flower's run config stands for; its keys are the flags of `cafedcl
    run`.
    """
    flags = {
        name: options[name] or None for name in ("method", "data", "split", "clients", "rounds")
    }
    seed = options["seed"] if options["seed"] >= 0 else None
    settings = [*str(options["settings"]).split(), "engine.name=flower"]
    return gather(options["config-file"] or None, seed=seed, settings=settings, **flags)


class GridHost:
    """Makes federations whose clients are the nodes of a Flower grid."""

    def __init__(self, grid: Grid, journal: Journal, deployment: str) -> None:
        self.grid = grid
        self.journal = journal
        self.deployment = deployment

    def __call__(
        self, config: Config, watchers: Sequence[Watcher], folder: RunFolder | None
    ) -> Federation:
        """Return the federation of a config; a run that goes on finds its sites by what its folder
        says of them.
        """
        mail = Mail(self.grid, config.engine.deadline)
        about = folder.environment().get("flower", {}) if folder else {}
        run = about.get("run") or secrets.token_hex(8)
        if is_remote(config):
            federation, sites = self._remote(config, watchers, mail, run, folder)
        else:
            federation = self._simulated(config, watchers, mail, run, folder)
            sites = []
        federation.about = {"flower": {"run": run, "sites": sites, "deployment": self.deployment}}
        return federation

    def _simulated(
        self,
        config: Config,
        watchers: Sequence[Watcher],
        mail: Mail,
        run: str,
        folder: RunFolder | None,
    ) -> Federation:
        setup = prepare(config)
        roster = Roster(mail, setup.config, simulated, self.journal.say)
        self._gathered(roster, setup.config, folder)
        terms = Terms(setup.config, None, run)
        return self._made(
            setup, watchers, mail, terms, lambda: {client: node for node, client in roster.online()}
        )

    def _remote(
        self,
        config: Config,
        watchers: Sequence[Watcher],
        mail: Mail,
        run: str,
        folder: RunFolder | None,
    ) -> tuple[Federation, list[str]]:
        roster = Roster(mail, config, self._enrolled, self.journal.say)
        found = self._gathered(roster, config, folder)
        population = remembered(folder) if folder else Population.of(found)
        setup = prepare_server(config, population)
        terms = Terms(setup.config, population.place(population.sites[0]), run)

        def where() -> dict[int, int]:
            return {
                population.sites.index(site.site): node
                for node, site in roster.online()
                if site.site in population.sites
            }

        return self._made(setup, watchers, mail, terms, where), list(population.sites)

    def _gathered(self, roster: Roster[T], config: Config, folder: RunFolder | None) -> list[T]:
        """Wait for the sites; a run that goes on does so after a while without those that are still
        missing.
        """
        patience = (
            config.engine.deadline if folder is None else min(config.engine.deadline, PATIENCE)
        )
        found = roster.wait(config.federation.clients, patience)
        if folder is None and len(found) < config.federation.clients:
            raise CafedclError(
                f"{len(found)} of {config.federation.clients} sites came within {patience:g} s (engine.deadline); "
                "start the others, or set federation.clients to those there are"
            )
        return found

    def _enrolled(self, node: int, tensors: Tensors, header: Header) -> Enrolled:
        """Read an enrolment; where sites have keys, a node is who its key says, whatever it calls
        itself.
        """
        site = Enrolled.unpacked(tensors, header)
        names = node_names(Path(self.deployment)) if self.deployment else {}
        if names and names.get(site.site) != str(node):
            raise ValueError(f"it calls itself {site.site}, but has another site's key")
        return site

    def _made(
        self, setup: Setup, watchers: Sequence[Watcher], mail: Mail, terms: Terms, where: Where
    ) -> Federation:
        return Federation(setup, watchers, FlowerEngine(setup.task, terms, mail, where))


def remembered(folder: RunFolder) -> Population:
    """Return the population that a run began with."""
    known, about = folder.data()
    channels, height, width = about["shape"]
    sites = tuple(folder.environment()["flower"]["sites"])
    return Population(
        sites,
        tuple(about["names"]),
        (channels, height, width),
        *(torch.from_numpy(known[name]) for name in ("counts", "mean", "std")),
    )
