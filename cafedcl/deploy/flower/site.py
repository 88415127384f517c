"""A site's worker: holds PyTorch, its data and what it keeps between rounds, and answers the
server's requests.
"""

import json
import re
import sys
import traceback
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch

from cafedcl.config.sections import Config
from cafedcl.core.contract import TICKET, Job, Reply
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.core.tensors import Header, Tensors, pack, unpack
from cafedcl.data import Dataset, load_dataset
from cafedcl.deploy.flower.messages import (
    ENROL,
    SURVEY,
    TRAIN,
    Parts,
    Request,
    Terms,
    answer_error,
    answer_plain,
    answer_train,
    read_request,
)
from cafedcl.deploy.population import enrol, is_remote, prepare_site
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.functional.metrics import correct
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve


@dataclass(frozen=True)
class Shelf:
    """What one client keeps for one run, a file per round; the server only holds the number of the
    round.
    """

    folder: Path

    def take(self, ticket: Tensors) -> Tensors:
        """Return what was kept in the round that the ticket names; a site that lost it starts anew,
        and says so.
        """
        if not ticket:
            return {}
        file = self._file(int(ticket[TICKET]))
        try:
            return unpack(file.read_bytes())[0]
        except (OSError, ValueError) as error:
            print(
                f"warning: {file}: cannot be read ({error}); this client starts anew",
                file=sys.stderr,
                flush=True,
            )
            return {}

    def keep(self, round: int, memory: Tensors, reach: int) -> Tensors:
        """Write down what is kept and return its ticket; rounds that nobody can go back to are
        thrown away.
        """
        if not memory:
            return {}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._file(round), pack(memory, {"round": round}))
        old = sorted(
            file for file in self.folder.glob("*.safetensors") if int(file.stem) < round - reach
        )
        for file in old[:-1]:
            file.unlink()
        return {TICKET: torch.tensor(round)}

    def _file(self, round: int) -> Path:
        return self.folder / f"{round:06d}.safetensors"


class Site:
    """Answers what the server asks: enrol, train a client, or test the server's model on the site's
    own part.

    ``data`` is where the site's own images are; without it, it holds the simulated shard of
    ``client``. A server may name code of the site's own packages as its method or model only if
    ``plugins`` allows it.
    """

    def __init__(
        self,
        home: Path,
        name: str = "",
        data: str = "",
        device: str = "auto",
        plugins: bool = False,
    ) -> None:
        self.home = home
        self.name = name
        self.data = data
        self.device = device
        self.plugins = plugins
        self._engine: tuple[str, ReferenceEngine] | None = None
        self._images: tuple[Header, Dataset] | None = None

    def answer(self, parts: Parts, client: int | None) -> Parts:
        """Return the answer to a request; whatever goes wrong is an answer too."""
        try:
            request = read_request(parts)
            steps = {ENROL: self._enrol, TRAIN: self._train, SURVEY: self._survey}
            return steps[request.kind](request, client)
        except CafedclError as error:
            return answer_error(str(error))
        except Exception as error:
            traceback.print_exc()
            return answer_error(f"{type(error).__name__}: {error}")

    def _enrol(self, request: Request, client: int | None) -> Parts:
        config = self._allowed(request.terms["config"])
        if is_remote(config):
            return answer_plain(*enrol(config, self._own(config), self.name).packed())
        if client is None:
            raise CafedclError(
                f"the run's data are '{config.data.name}', but this site has data of its own"
            )
        return answer_plain({}, {"client": client})

    def _train(self, request: Request, client: int | None) -> Parts:
        job, terms = self._accepted(request, client)
        engine = self._bench(request, terms)
        shelf = self._shelf(terms, job)
        result = engine.attempt(replace(job, memory=shelf.take(job.memory)))
        if isinstance(result, Reply):
            reach = 2 * terms.config.store.checkpoint_every
            result = replace(result, memory=shelf.keep(job.down.round, result.memory, reach))
        return answer_train(result, job.down.round)

    def _survey(self, request: Request, client: int | None) -> Parts:
        _, terms = self._accepted(request, client)
        engine = self._bench(request, terms)
        _, y = engine.task.clients.test_set(None)
        if not len(y):
            raise CafedclError("this site has no test images")
        right = correct(
            {"all": engine.predict(request.down.tensors)()}, y.cpu(), engine.task.method.classes
        )
        return answer_plain(right, {"round": request.down.round})

    def _accepted(self, request: Request, client: int | None) -> tuple[Job, Terms]:
        job = request.job
        if client is not None and job.client != client:
            raise CafedclError(f"this site is client {client}, but is asked as client {job.client}")
        return job, Terms.of(request.terms, self._allowed(request.terms["config"]), job.client)

    def _allowed(self, plain: Header) -> Config:
        """Return a config as it stands for here, unless it names code that the site has not allowed
        to be imported.
        """
        names = {
            section: str(plain.get(section, {}).get("name", ""))
            for section in ("method", "model", "data")
        }
        preset = {"method": r"[^.:]+:.*", "data": r"hf:.*", "model": r"[^:]+"}
        code = [
            name
            for section, name in names.items()
            if ":" in name and not re.fullmatch(preset[section], name)
        ]
        if code and not self.plugins:
            raise CafedclError(
                f"the server names code at this site, '{code[0]}'; allow it with plugins = true"
            )
        config = resolve(plain)
        return replace(config, engine=replace(config.engine, device=self.device))

    def _own(self, config: Config) -> Dataset:
        """Return the site's own data set, read once for as long as the options that shape it stay."""
        if not self.data:
            raise CafedclError(
                "the run wants sites' own data, and this site names none; set data in its config"
            )
        options = replace(config.data, name=self.data, dir="", test="")
        key = {"size": options.size, "strict": options.strict}
        if self._images is None or self._images[0] != key:
            self._images = key, load_dataset(options)
        return self._images[1]

    def _bench(self, request: Request, terms: Terms) -> ReferenceEngine:
        """Return the engine for a run's terms, built once."""
        asked = blake2b(
            json.dumps(request.terms, sort_keys=True).encode(), digest_size=16
        ).hexdigest()
        if self._engine is None or self._engine[0] != asked:
            config = terms.config
            place = terms.place
            own = (
                None if place is None else prepare_site(config, self._own(config), place, self.name)
            )
            self._engine = asked, ReferenceEngine(own or prepare(config).task)
        return self._engine[1]

    def _shelf(self, terms: Terms, job: Job) -> Shelf:
        if not re.fullmatch(r"[0-9a-f]{1,64}", terms.run):
            raise CafedclError("the run has no proper name")
        return Shelf(self.home / "memory" / terms.run / str(job.client))
