"""A site: holds its data and its client's memory, and answers the server's requests."""

import json
import re
import sys
import traceback
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from cafedcl.config.options import to_plain
from cafedcl.config.sections import Config
from cafedcl.core.contract import Job, Reply
from cafedcl.core.errors import CafedclError, in_words
from cafedcl.core.printable import printable
from cafedcl.core.tensors import OWN_MODEL, Header, moved, without
from cafedcl.data import Dataset, load_dataset
from cafedcl.deploy.flower.messages import (
    ENROL,
    KEYS,
    LONGEST_ERROR,
    MASKED,
    SHARES,
    SURVEY,
    TRAIN,
    UNMASK,
    Request,
    Terms,
    answer_error,
    answer_plain,
    answer_train,
    read_request,
)
from cafedcl.deploy.flower.records import MessageParts
from cafedcl.deploy.flower.secure_sum import SecureMember
from cafedcl.deploy.population import enrol, prepare_site
from cafedcl.deploy.rules import RefusalError, SiteRules
from cafedcl.deploy.site_memory import MemoryFolder
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.checkpoint import frozen_digest
from cafedcl.federation.contributions import ContributionBounds, Contributor
from cafedcl.federation.replies import with_own_model
from cafedcl.functional.metrics import count_correct
from cafedcl.task.build import prepare
from cafedcl.task.resolve import imported_names, read_file_of, resolve
from cafedcl.task.task import arithmetic

ANY_RUN = SiteRules()


class Site:
    """Answers the server's requests: enrol, train a client, or test the server's model.

    ``data`` is the path of the site's own images; without it, the site holds a simulated shard.
    Only with ``plugins`` may the server choose a method or model from the site's own packages.
    """

    def __init__(
        self,
        home: Path,
        name: str = "",
        data: str = "",
        device: str = "auto",
        plugins: bool = False,
        rules: SiteRules = ANY_RUN,
    ) -> None:
        self.home = home
        self.name = name
        self.data = data
        self.device = device
        self.plugins = plugins
        self.rules = rules
        self._engine: tuple[str, ReferenceEngine] | None = None
        self._dataset: tuple[Header, Dataset] | None = None
        self._member: tuple[tuple[str, int, int], SecureMember] | None = None
        self._said: dict[str, str] = {}
        self._failed = False
        """Whether this site's last reply cannot count because of an error here."""

    def answer(self, parts: MessageParts, client: int | None) -> MessageParts:
        """Return the answer to a request; an error is an answer too."""
        try:
            request = read_request(parts)
            handlers = {
                ENROL: self._enrol,
                TRAIN: self._train,
                SURVEY: self._survey,
                KEYS: self._secure_keys,
                SHARES: self._secure_shares,
                MASKED: self._secure_vector,
                UNMASK: self._secure_unmasking,
            }
            return handlers[request.kind](request, client)
        except RefusalError as error:
            self._say(f"refused: {error}")
            return answer_error(str(error))
        except CafedclError as error:
            return self._answer_fault("its data and this run do not fit", str(error))
        except Exception as error:
            if self.data:
                traceback.print_exc()
            return self._answer_fault(type(error).__name__, in_words(error))

    def _answer_fault(self, kind: str, error: str) -> MessageParts:
        """Return the answer to a request that failed.

        An error may name a patient, a file or a folder. So a site with its own data keeps it to
        itself and reports only its kind, unless its rules allow details.
        """
        self._say(f"error: {error}")
        self._failed = True
        if not self.data or self.rules.details:
            return answer_error(error)
        return answer_error(f"{kind}; the whole error is in the site's worker.log")

    def _say(self, line: str) -> None:
        # The run itself reports the errors of a simulated shard. Lines that repeat in every round
        # are printed once.
        kind = line.partition(":")[0]
        # Text from elsewhere must not start new lines, which would look like this site's own.
        line = " ".join(line.split())
        if self.data and line != self._said.get(kind):
            print(printable(line), file=sys.stderr, flush=True)
            self._said[kind] = line

    def _say_if_uncounted(self, request: Request) -> None:
        """Log why the server did not count this site's last reply: nothing else here shows it."""
        failed_here = self._failed
        self._failed = False
        if "uncounted" not in request.own:
            # The same reason after a reply that counted is news.
            self._said.pop("warning", None)
        elif not failed_here:
            reason = str(request.own["uncounted"])[:LONGEST_ERROR]
            self._say(f"warning: the server did not count the last reply of this site: {reason}")

    def _enrol(self, request: Request, client: int | None) -> MessageParts:
        config = self._allowed(request.terms["config"])
        if config.at_sites:
            answer = answer_plain(*enrol(config, self._own_data(config), self.name).packed())
            self._said.pop("enrolled", None)  # it may be another run like the last one
            self._say(f"enrolled: {config.method.name}, {config.federation.rounds} rounds")
            return answer
        return answer_plain({}, {"client": client})

    def _train(self, request: Request, client: int | None) -> MessageParts:
        job, terms = self._accepted(request, client)
        if terms.config.privacy.secure:
            raise RefusalError("this run sums securely; a single reply is not given")
        self._say_if_uncounted(request)
        return answer_train(self._trained(request, job, terms), job.down.round)

    def _trained(self, request: Request, job: Job, terms: Terms) -> Reply:
        """Train; the memory stays at the site, and the reply has a ticket for it."""
        engine = self._engine_for(request, terms)
        folder = self._memory_folder(terms, job)
        with arithmetic(engine.task):
            memory = without(OWN_MODEL, folder.load(job.memory))
            reply = engine.work(replace(job, memory=memory))
        if terms.config.store.own:
            reply = with_own_model(reply, job.down)
        # A resumed run goes back to one of the last two checkpoints.
        reach = 2 * terms.config.store.checkpoint_every
        kept = folder.save(job.down.round, reply.memory, reach, job.memory)
        return replace(reply, memory=kept)

    def _secure_keys(self, request: Request, client: int | None) -> MessageParts:
        job, terms = self._accepted(request, client)
        self._say_if_uncounted(request)
        member = SecureMember(job.client)
        # One sum at a time: the keys of an earlier one are forgotten.
        self._member = ((terms.run, job.down.round, job.client), member)
        return answer_plain({}, {"round": job.down.round, "keys": list(member.public)})

    def _secure_shares(self, request: Request, client: int | None) -> MessageParts:
        job, member = self._summing(request, client)
        keys = {int(other): (pair[0], pair[1]) for other, pair in request.own["keys"].items()}
        return answer_plain({}, {"round": job.down.round, "shares": member.shares(keys)})

    def _secure_vector(self, request: Request, client: int | None) -> MessageParts:
        job, member = self._summing(request, client)
        _, terms = self._accepted(request, client)
        result = self._trained(request, job, terms)
        task = self._engine_for(request, terms).task
        bounds = ContributionBounds(terms.config.privacy, task)
        contributor = Contributor(bounds, moved(job.down.tensors, task.device))
        tokens = {int(other): token for other, token in request.own["shares"].items()}
        masked = member.masked(contributor.contribution(result.up).numpy(), tokens)
        # PyTorch's whole numbers have signs.
        vector = torch.from_numpy(masked.view(np.int32))
        return answer_plain({"masked": vector, **result.memory}, {"round": job.down.round})

    def _secure_unmasking(self, request: Request, client: int | None) -> MessageParts:
        job, member = self._summing(request, client)
        shares = member.unmask(request.own["survivors"], request.own["dropped"])
        return answer_plain({}, {"round": job.down.round, "shares": shares})

    def _summing(self, request: Request, client: int | None) -> tuple[Job, SecureMember]:
        """Return the job and this site's part in the sum of its round."""
        job, terms = self._accepted(request, client)
        key = (terms.run, job.down.round, job.client)
        if self._member is None or self._member[0] != key:
            raise RefusalError("this site has no keys for this sum; it may have been restarted")
        return job, self._member[1]

    def _survey(self, request: Request, client: int | None) -> MessageParts:
        _, terms = self._accepted(request, client)
        engine = self._engine_for(request, terms)
        _, y = engine.task.clients.test_set(None)
        if not len(y):
            raise RefusalError("this site has no test images")
        predicted = engine.predict(request.down.tensors)()
        counted = count_correct({"all": predicted}, y.cpu(), engine.task.method.classes)
        correct = engine.task.release.tested(counted)
        return answer_plain(correct, {"round": request.down.round})

    def _accepted(self, request: Request, client: int | None) -> tuple[Job, Terms]:
        job = request.job
        if client is not None and job.client != client:
            raise RefusalError(
                f"this site is client {client}, but the request is for client {job.client}"
            )
        terms = Terms.of(request.terms, self._allowed(request.terms["config"]), job.client)
        if (terms.assigned is not None) != terms.config.at_sites:
            raise RefusalError("what the request says of the run's data does not fit together")
        return job, terms

    def _allowed(self, plain: Header) -> Config:
        """Return the config for this site; refuse one that names code which must not run here."""
        code = imported_names(plain)
        if code and not self.plugins:
            raise RefusalError(
                f"the server wants to run '{code[0]}' at this site; allow it with plugins = true"
            )
        try:
            config = resolve(plain)
        except CafedclError as error:
            # A mistake in the server's config reveals nothing about this site.
            raise RefusalError(str(error)) from None
        if self.data and not config.at_sites:
            # All that protects a site's data depends on this name, so the server must not choose
            # another.
            raise RefusalError(
                f"the run's data set is '{config.data.name}', but this site has its own data; "
                "a run that is to use it needs data.name = sites"
            )
        file = read_file_of(config)
        if file and not self.plugins:
            raise RefusalError(
                f"the server wants to read '{file}' at this site; allow it with plugins = true"
            )
        if self.data:
            problem = self.rules.problem(config)
            if problem:
                raise RefusalError(problem)
            # The server's folders mean nothing here, and must not be written to.
            config = replace(config, data=replace(config.data, dir="", test=""))
        return replace(config, engine=replace(config.engine, device=self.device))

    def _own_data(self, config: Config) -> Dataset:
        """Return the site's own data set; it is read again only if its options change."""
        if not self.data:
            raise RefusalError(
                "the run needs the sites' own data; set data in this site's site.toml"
            )
        options = replace(config.data, name=self.data)
        key = to_plain(options)
        if self._dataset is None or self._dataset[0] != key:
            self._dataset = (key, load_dataset(options))
        return self._dataset[1]

    def _engine_for(self, request: Request, terms: Terms) -> ReferenceEngine:
        """Return the engine for a run's terms; it is built again only if they change."""
        text = json.dumps(request.terms, sort_keys=True)
        key = blake2b(text.encode(), digest_size=16).hexdigest()
        if self._engine is None or self._engine[0] != key:
            config = terms.config
            if terms.assigned is None:
                task = prepare(config).task
            else:
                data = self._own_data(config)
                task = prepare_site(config, data, terms.assigned, self.name)
            if frozen_digest(task) != terms.frozen:
                raise RefusalError(
                    f"the frozen weights of the encoder '{config.model.name}' at this site are not "
                    "those of the server; both need the same files"
                )
            self._engine = (key, ReferenceEngine(task))
        return self._engine[1]

    def _memory_folder(self, terms: Terms, job: Job) -> MemoryFolder:
        # The id becomes part of a path, so a server must not be able to leave the folder.
        if not re.fullmatch(r"[0-9a-f]{1,64}", terms.run):
            raise RefusalError("the run's id is not valid")
        return MemoryFolder.of(self.home, terms.run, job.client)
