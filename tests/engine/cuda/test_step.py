import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cafedcl.config.sections import EngineOptions
from cafedcl.config.train_options import TrainOptions
from cafedcl.core.contract import Batch, Down, Job, Visit
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, under
from cafedcl.engine.cuda.client_slot import STEP
from cafedcl.engine.cuda.constants import NO_TABLES, ConstantsTables
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.engine.cuda.step import Images, Program, StepWeights
from cafedcl.engine.optimizer import start_state
from cafedcl.engine.schedule import make_schedule
from cafedcl.federation.rounds import Federation
from cafedcl.methods import checked, method_names
from cafedcl.task.task import Task

Tiny = Callable[..., Federation]
HALF = torch.bfloat16
pytestmark = pytest.mark.usefixtures("plain_kernels")


@pytest.fixture(scope="module")
def after_a_round(tiny: Tiny) -> Callable[[str], Federation]:
    """A federation that has anchors and memories."""
    made: dict[str, Federation] = {}

    def make(method: str) -> Federation:
        if method not in made:
            made[method] = tiny(method, federation__participation=1.0)
            made[method].step()
        return made[method]

    return make


def visit_of(federation: Federation, client: int = 0) -> Visit:
    task, method = federation.task, federation.method
    sent, kept = method.broadcast(federation.state), federation.memories[client]
    known = task.clients.client(client)
    return Visit(
        client=known,
        round=torch.tensor(1.0),
        progress=torch.tensor(0.5),
        received={**task.initial, **under(MODEL, sent), **under(MODEL, kept)},
        anchors=under(ANCHORS, sent),
        memory={name: value for name, value in kept.items() if not name.startswith(MODEL)},
        scratch=method.scratch(known),
        embed=lambda part, weights: pytest.fail("a loss embeds nothing"),
    )


def moved_away(weights: Tensors) -> Tensors:
    """Weights that are not the received ones, each of which a gradient can be asked for."""
    made = torch.Generator().manual_seed(3)
    return {
        n: (w + 0.05 * torch.randn(w.shape, generator=made)).requires_grad_()
        for n, w in weights.items()
    }


def images_of(task: Task, dtype: torch.dtype) -> Images:
    return lambda rows, _: (
        task.clients.data.images(task.clients.data.train_x[rows]).to(dtype),
        task.clients.data.train_y[rows],
        None,
    )


def tables_of(task: Task, client: int = 0) -> Tensors:
    shard = task.clients.shards.train[client].numpy()
    return make_schedule(task, shard, client, 1, task.schedule.batch_size(len(shard)) + 3).tables


def batch_at(task: Task, tables: Tensors, step: int) -> Batch:
    """The batch of a step without its padding."""
    real = tables["weight"][step] == 1
    rows = tables["rows"][step][real]
    return Batch(*images_of(task, torch.float32)(rows, {})[:2], torch.ones(len(rows)))


# updates


@pytest.mark.parametrize(
    ("momentum", "decay", "clip"), list(itertools.product([0.0, 0.9], [0.0, 1e-2], [0.0, 0.5, 1e6]))
)
@pytest.mark.parametrize("halved", [0, 2])
def test_updates_are_those_of_torch_sgd_after_clipping_the_norm(
    tiny: Tiny, momentum: float, decay: float, clip: float, halved: int
) -> None:
    """To 1e-6, against torch in float64; the first weight has two gradients, which are added."""
    task, steps, made = tiny("fedavg").task, 6, torch.Generator().manual_seed(0)
    options = TrainOptions(momentum=momentum, weight_decay=decay, clip=clip)
    program = Program(
        task.network,
        task.method,
        options,
        task.transforms,
        HALF if halved else torch.float32,
        compiled=False,
    )
    shapes = [(4, 3), (5,), (2, 3, 3, 3)]
    sizes = [math.prod(shape) for shape in shapes]
    weights = torch.randn(sum(sizes), generator=made)
    half = weights.to(HALF) if halved else None
    state = start_state(weights, options)
    theirs = [
        nn.Parameter(w.double().view(s)) for w, s in zip(weights.split(sizes), shapes, strict=True)
    ]
    optimizer = torch.optim.SGD(theirs, lr=1.0, momentum=momentum, weight_decay=decay)
    tables = {"rate": 0.1 * 0.8 ** torch.arange(steps)}
    at, log = torch.zeros(1, dtype=torch.int64), torch.zeros(steps, 2)
    for step in range(steps):
        gradients = [[torch.randn(shape, generator=made)] for shape in shapes]
        gradients[:halved] = [[part.to(HALF) for part in parts] for parts in gradients[:halved]]
        gradients[0].insert(0, torch.randn(shapes[0], generator=made))
        terms = torch.tensor([step, -step]).float()
        program.update(weights, half, gradients, state, None, tables, at, terms, log)
        for weight, parts in zip(theirs, gradients, strict=True):
            weight.grad = torch.stack([part.double() for part in parts]).sum(0)
        if clip:
            norm = nn.utils.clip_grad_norm_(theirs, clip)
            assert (norm > clip) == (clip == 0.5)
        optimizer.param_groups[0]["lr"] = float(tables["rate"][step])
        optimizer.step()
        expected = torch.cat([weight.detach().flatten() for weight in theirs])
        torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-6)
        assert half is None or torch.equal(half, weights.to(HALF))
        assert at.tolist() == [step + 1]
    assert log.tolist() == [[step, -step] for step in range(steps)]


EVERY_OPTION = {
    "optimizer": "adamw",
    "lr": 0.001,
    "label_smoothing": 0.1,
    "flip": True,
    "crop": 1,
    "rotate": 20.0,
    "jitter": 0.3,
    "randaugment": 2,
    "cutout": 3,
}


@pytest.fixture
def nothing_compiled() -> None:
    """Dynamo compiles a function eight times at most, whichever tests asked for it before."""
    torch._dynamo.reset()


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", ["fedavg", "cafedcl", "moon", "every option"])
def test_a_step_is_compiled_in_one_piece(
    after_a_round: Callable[[str], Federation], tiny: Tiny, name: str
) -> None:
    """Whatever dynamo cannot follow would run as kernels of its own in between."""
    if name == "every option":
        federation = tiny("fedavg", **{f"train__{key}": v for key, v in EVERY_OPTION.items()})
        federation.step()
        federation.memories.setdefault(0, {})
    else:
        federation = after_a_round(name)
    task = federation.task
    program = Program(
        task.network,
        federation.method,
        task.schedule.options,
        task.transforms,
        torch.float32,
        compiled=False,
    )
    tables, visit, at = tables_of(task), visit_of(federation), torch.tensor([1])
    weights = moved_away(visit.received)
    given = StepWeights(weights, under("encoder.", weights))
    whole = {
        part: torch.compile(getattr(program, part), backend="eager", fullgraph=True)
        for part in ("objective", "update")
    }
    loss, terms = whole["objective"](
        given, images_of(task, torch.float32), {}, tables, at, visit, NO_TABLES
    )
    found = torch.autograd.grad(loss, list(weights.values()))
    flat = torch.cat([weight.detach().flatten() for weight in weights.values()])
    log = torch.zeros(len(tables["rows"]), len(terms))
    before = flat.clone()
    state = start_state(flat, task.schedule.options)
    whole["update"](flat, flat.to(HALF), [[g] for g in found], state, None, tables, at, terms, log)
    assert at.tolist() == [2]
    assert not torch.equal(flat, before)
    assert torch.equal(log[1], terms)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", ["cafedcl:best", "fedvls"])
def test_constants_are_compiled_in_one_piece_and_a_step_reads_them(
    after_a_round: Callable[[str], Federation], name: str
) -> None:
    federation = after_a_round(name)
    task, visit = federation.task, visit_of(federation)
    program = Program(
        task.network,
        federation.method,
        task.schedule.options,
        task.transforms,
        torch.float32,
        compiled=False,
    )
    whole = {
        part: torch.compile(getattr(program, part), backend="eager", fullgraph=True)
        for part in ("constants", "objective")
    }
    tables, at = tables_of(task), torch.tensor([1])
    weights = moved_away(visit.received)
    given, images = StepWeights(weights, under("encoder.", weights)), images_of(task, torch.float32)
    rows = tables["rows"].unique().flip(0)
    found = whole["constants"](given, images, {}, rows, visit)
    assert all(len(value) == len(rows) for value in found.values())
    places = torch.zeros(len(task.clients.data.train_y), dtype=torch.int64)
    places[rows] = torch.arange(len(rows))
    losses = [
        whole["objective"](given, images, {}, tables, at, visit, constants)[1]
        for constants in (NO_TABLES, ConstantsTables(places, found))
    ]
    assert losses[0].count_nonzero() > 1
    torch.testing.assert_close(losses[1], losses[0], atol=1e-6, rtol=1e-5)
    wrong = ConstantsTables(places, {name: value.flip(0) for name, value in found.items()})
    other = whole["objective"](given, images, {}, tables, at, visit, wrong)[1]
    assert not torch.allclose(other, losses[0], rtol=1e-4)


@pytest.mark.parametrize("name", ["fedavg", "cafedcl"])
def test_scoring_is_compiled_in_one_piece(
    after_a_round: Callable[[str], Federation], name: str
) -> None:
    federation = after_a_round(name)
    task, visit = federation.task, visit_of(federation)
    program = Program(
        task.network,
        federation.method,
        task.schedule.options,
        task.transforms,
        torch.float32,
        compiled=False,
    )
    weights = {name: value.detach() for name, value in moved_away(visit.received).items()}
    given, images = StepWeights(weights, under("encoder.", weights)), images_of(task, torch.float32)
    asked, prior = torch.arange(40).view(2, 20), (torch.arange(10) < 6).float().log()
    found = []
    for predict in (
        program.predict,
        torch.compile(program.predict, backend="eager", fullgraph=True),
    ):
        at, predicted = torch.tensor([0]), torch.zeros(2, 20, 3, dtype=torch.int16)
        with torch.no_grad():
            for _ in asked:
                predict(given, images, asked, at, visit.anchors, {}, prior, predicted)
        found.append(predicted)
    assert torch.equal(*found)
    assert len(found[0][..., 0].unique()) > 1


# objectives


@pytest.mark.parametrize("name", method_names())
def test_the_objective_is_the_methods_loss_on_the_plain_network(
    after_a_round: Callable[[str], Federation], name: str
) -> None:
    """In fp32, with padding, at a step that is not the first; terms and gradients to 1e-5."""
    federation = after_a_round(name)
    task, step = federation.task, 1
    program = Program(
        task.network,
        federation.method,
        task.schedule.options,
        task.transforms,
        torch.float32,
        compiled=False,
    )
    tables, visit = tables_of(task), visit_of(federation)
    weights = moved_away(visit.received)
    given, at = StepWeights(weights, under("encoder.", weights)), torch.tensor([step])
    loss, terms = program.objective(
        given, images_of(task, torch.float32), {}, tables, at, visit, NO_TABLES
    )
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)

    network = task.network.train()
    network.load_state_dict(weights)
    network.zero_grad()
    plain = checked.loss(
        federation.method, network, batch_at(task, tables, step), visit_of(federation)
    )
    sum(plain.values()).backward()
    names = program.loss_names(
        given, images_of(task, torch.float32), {}, tables, at, visit, NO_TABLES
    )
    assert names == tuple(plain)
    assert not terms.requires_grad
    assert float(loss.detach()) == pytest.approx(float(terms.sum()), rel=1e-6)
    torch.testing.assert_close(
        terms, torch.stack([term.detach() for term in plain.values()]), atol=1e-6, rtol=1e-5
    )
    assert any(gradient is not None and gradient.any() for gradient in found)
    for (entry, weight), gradient in zip(network.named_parameters(), found, strict=True):
        expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
        ours = torch.zeros_like(weight) if gradient is None else gradient
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4, msg=entry)


def test_scratch_is_zeroed_at_the_first_step_of_an_epoch_and_only_there(tiny: Tiny) -> None:
    federation = tiny("fedavg", train__epochs=2, train__iterations=3)
    task = federation.task

    class Counting(type(federation.method)):
        def loss(self, model, batch, visit):
            visit.scratch["seen"].add_(batch.weight.sum())
            return super().loss(model, batch, visit)

    method = Counting(None, 10, federation.method.dim)
    program = Program(
        task.network, method, task.schedule.options, task.transforms, torch.float32, compiled=False
    )
    federation.step()
    federation.memories.setdefault(0, {})
    visit = replace(visit_of(federation), scratch={"seen": torch.tensor(99.0)})
    given = StepWeights(task.initial, under("encoder.", task.initial))
    tables, seen = tables_of(task), []
    for step in range(6):
        program.objective(
            given,
            images_of(task, torch.float32),
            {},
            tables,
            torch.tensor([step]),
            visit,
            NO_TABLES,
        )
        seen.append(float(visit.scratch["seen"]))
    sizes = tables["weight"].sum(1).tolist()
    assert len(sizes) == 6
    assert seen == [*itertools.accumulate(sizes[:3]), *itertools.accumulate(sizes[3:])]


def test_images_are_augmented_as_was_drawn(tiny: Tiny) -> None:
    federation = tiny("fedavg", train__flip=True, train__crop=1)
    task, seen = federation.task, []

    class Seeing(type(federation.method)):
        def loss(self, model, batch, visit):
            seen.append(batch.x)
            return super().loss(model, batch, visit)

    method = Seeing(None, 10, federation.method.dim)
    program = Program(
        task.network, method, task.schedule.options, task.transforms, torch.float32, compiled=False
    )
    tables, given = tables_of(task), StepWeights(task.initial, under("encoder.", task.initial))
    federation.step()
    federation.memories.setdefault(0, {})
    program.objective(
        given,
        images_of(task, torch.float32),
        {},
        tables,
        torch.tensor([0]),
        visit_of(federation),
        NO_TABLES,
    )
    plain = images_of(task, torch.float32)(tables["rows"][0], {})[0]
    drawn = zip(
        plain,
        seen[0],
        tables["draw/flip/flipped"][0].tolist(),
        tables["draw/crop/place"][0].tolist(),
        strict=True,
    )
    for image, augmented, flip, (down, right) in drawn:
        turned = image.flip(2) if flip else image
        expected = F.pad(turned, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]
        assert torch.equal(augmented, expected)


# precision


def spied(module: nn.Module) -> list[tuple[torch.dtype, torch.dtype]]:
    """The types that go into a module and come out of it."""
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    module.register_forward_hook(
        lambda _module, given, found: seen.append((given[0].dtype, found.dtype))
    )
    return seen


def in_both(weights: Tensors) -> StepWeights:
    halves = {
        n: w.detach().to(HALF).requires_grad_() for n, w in under("encoder.", weights).items()
    }
    return StepWeights(weights, halves)


@pytest.mark.parametrize("name", ["fedavg", "cafedcl", "moon", "fedrcl", "fedproto"])
def test_in_bf16_only_the_encoder_is_in_bf16(
    after_a_round: Callable[[str], Federation], name: str
) -> None:
    federation = after_a_round(name)
    task, method = federation.task, federation.method
    program = Program(
        task.network, method, task.schedule.options, task.transforms, HALF, compiled=False
    )
    plays = program.functional
    inside = [spied(module) for module in (plays.body.first, plays.body.second)]
    layers = [module for module in plays.network.head.modules() if isinstance(module, nn.Linear)]
    head, bystander = [spied(layer) for layer in layers], spied(plays.network.encoder)
    visit, tables = visit_of(federation), tables_of(task)
    given = in_both(moved_away(visit.received))
    loss, terms = program.objective(
        given, images_of(task, HALF), {}, tables, torch.tensor([0]), visit, NO_TABLES
    )
    asked = [*given.network.values(), *given.encoder.values()]
    gradients = torch.autograd.grad(loss, asked, allow_unused=True)
    assert all(seen and set(seen) == {(HALF, HALF)} for seen in inside)
    assert all(set(seen) <= {(torch.float32, torch.float32)} for seen in head)
    assert any(head) or name in ("cafedcl", "fedproto")
    assert bystander == []
    assert loss.dtype == terms.dtype == torch.float32
    body = gradients[len(given.network) :]
    assert all(gradient is not None and gradient.dtype == HALF for gradient in body)
    assert all(g is None or g.dtype == torch.float32 for g in gradients[: len(given.network)])

    full = Program(
        task.network, method, task.schedule.options, task.transforms, torch.float32, compiled=False
    )
    single = StepWeights(given.network, under("encoder.", given.network))
    exact, _ = full.objective(
        single,
        images_of(task, torch.float32),
        {},
        tables,
        torch.tensor([0]),
        visit_of(federation),
        NO_TABLES,
    )
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.02)
    assert float(loss.detach()) != float(exact.detach())


def test_embeddings_and_scores_of_a_bf16_encoder_are_float32(
    after_a_round: Callable[[str], Federation],
) -> None:
    federation = after_a_round("cafedcl")
    task, method = federation.task, federation.method
    program = Program(
        task.network, method, task.schedule.options, task.transforms, HALF, compiled=False
    )
    given, rows = in_both(moved_away(task.initial)), torch.arange(20)
    z = program.embed(given, images_of(task, HALF), {}, rows)
    assert z.dtype == torch.float32
    task.network.load_state_dict(given.network)
    exact = method.embed(task.network.eval(), images_of(task, torch.float32)(rows, {})[0])
    torch.testing.assert_close(z, exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", ["fedavg", "cafedcl", "fedproto"])
def test_predictions_are_the_largest_score_among_all_those_held_and_by_the_prior(
    after_a_round: Callable[[str], Federation], name: str
) -> None:
    federation = after_a_round(name)
    task, method, visit = federation.task, federation.method, visit_of(federation)
    program = Program(
        task.network, method, task.schedule.options, task.transforms, torch.float32, compiled=False
    )
    weights = {name: value.detach() for name, value in moved_away(visit.received).items()}
    share = {1: 0.1, 4: 0.2, 7: 0.7}
    rows, prior = torch.arange(50), torch.tensor([share.get(c, 0.0) for c in range(10)]).log()
    given, images = StepWeights(weights, under("encoder.", weights)), images_of(task, torch.float32)
    asked, at = torch.stack([rows.flip(0), rows, rows.flip(0)]), torch.tensor([1])
    table = torch.full((3, 50, 3), -1, dtype=torch.int16)
    with torch.no_grad():
        program.predict(given, images, asked, at, visit.anchors, visit.memory, prior, table)
    assert at.tolist() == [2]
    assert (table[[0, 2]] == -1).all(), "only those that were next are noted"
    predicted = table[1]
    task.network.load_state_dict(weights)
    with torch.no_grad():
        scores = method.scores(
            task.network.eval(), images(rows, {})[0], visit.anchors, visit.memory
        ).tolist()
    for found, row in zip(predicted.tolist(), scores, strict=True):
        by_prior = {c: row[c] + math.log(part) for c, part in share.items()}
        assert found == [
            max(range(10), key=row.__getitem__),
            max(share, key=row.__getitem__),
            max(by_prior, key=by_prior.__getitem__),
        ]
    torch.testing.assert_close(
        program.embed(given, images, {}, rows),
        method.embed(task.network, images(rows, {})[0]).detach(),
        atol=1e-6,
        rtol=1e-5,
    )


# a loss that looks at the weights


def test_a_loss_on_weights_has_its_gradient_through_them_and_the_rest_through_the_body(
    tiny: Tiny,
) -> None:
    federation = tiny("fedprox", method__mu=0.7, federation__participation=1.0)
    federation.step()
    task, visit = federation.task, visit_of(federation)
    program = Program(
        task.network,
        federation.method,
        task.schedule.options,
        task.transforms,
        torch.float32,
        compiled=False,
    )
    weights, tables = moved_away(visit.received), tables_of(task)
    body = {
        name: value.detach().clone().requires_grad_()
        for name, value in under("encoder.", weights).items()
    }
    loss, _ = program.objective(
        StepWeights(weights, body),
        images_of(task, torch.float32),
        {},
        tables,
        torch.tensor([1]),
        visit,
        NO_TABLES,
    )
    found = torch.autograd.grad(loss, [*weights.values(), *body.values()])
    through = dict(zip([*weights, *(f"body.{name}" for name in body)], found, strict=True))

    batch, network = batch_at(task, tables, 1), task.network
    network.load_state_dict(weights)
    network.zero_grad()
    F.cross_entropy(network.head(network.encoder(batch.x)), batch.y).backward()
    for name, weight in network.named_parameters():
        pull = 0.7 * (weights[name].detach() - visit.received[name])
        inside = name.startswith("encoder.")
        expected = pull if inside else pull + weight.grad
        torch.testing.assert_close(through[name], expected, atol=1e-6, rtol=1e-5, msg=name)
        if inside:
            other = through[name.replace("encoder.", "body.", 1)]
            torch.testing.assert_close(other, weight.grad, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_moves_the_weights_by_both_gradients_together(tiny: Tiny, precision: str) -> None:
    """Against SGD by hand; in bf16 the encoder is a cast copy, and the pull is exact."""
    federation = tiny(
        "fedprox", method__mu=5.0, train__clip=0.0, train__weight_decay=0.0, train__lr=0.05
    )
    task, mu = federation.task, 5.0
    engine = CudaEngine(
        task, replace(EngineOptions(), precision=precision, streams=1), 3, compiled=False
    )
    slot, down = engine._slot(0), Down(0, federation.method.broadcast(federation.state))
    job = Job(0, down, {}, False)
    plan, width = slot.captures_for(job), engine.device_data.width(0)
    slot.prepare(plan, width)
    slot.receive(engine._place(down), job)
    schedule = make_schedule(task, task.tail.rows[0], 0, 0, width)
    slot.batch_tables(width).fill(schedule)
    received = {name: value.clone() for name, value in task.initial.items()}
    weights = {name: value.clone() for name, value in received.items()}
    dtype = HALF if precision == "bf16" else torch.float32
    for step in range(schedule.steps):
        plan.repeat(STEP, width, 1)
        batch = batch_at(task, schedule.tables, step)
        network = task.network
        network.load_state_dict(weights)
        network.encoder.to(dtype)
        network.zero_grad()
        logits = network.head(network.encoder(batch.x.to(dtype)).float())
        F.cross_entropy(logits, batch.y).backward()
        for name, weight in network.named_parameters():
            pull = mu * (weights[name] - received[name])
            weights[name] = weights[name] - 0.05 * (weight.grad.float() + pull)
        network.encoder.float()
        for name, leaf in slot.leaves.items():
            torch.testing.assert_close(
                leaf.detach(), weights[name], atol=1e-6, rtol=1e-5, msg=f"{step}: {name}"
            )
    assert schedule.steps == 2
    assert not torch.equal(weights["encoder.first.weight"], received["encoder.first.weight"])
