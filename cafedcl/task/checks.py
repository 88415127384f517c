"""Checks of a config against its data, its method and its network."""

import re
from collections.abc import Iterator

from cafedcl.config.sections import Config
from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import ENCODER
from cafedcl.methods.base import Method
from cafedcl.models import Encoder, Network
from cafedcl.task.task import Task


def check_schedule(config: Config) -> dict[int, set[int]]:
    """Return the drop-out schedule by round; raise CafedclError for a wrong entry."""
    schedule: dict[int, set[int]] = {}
    for entry in config.federation.drop:
        head, _, tail = entry.partition(":")
        try:
            round_ = int(head)
            clients = {int(client) for client in tail.split(",")}
        except ValueError:
            raise CafedclError(
                f'federation.drop: "{entry}" is not "round:client,client", such as "3:0,4"'
            ) from None
        rounds = config.federation.rounds
        if not 0 <= round_ < rounds:
            raise CafedclError(
                f'federation.drop: "{entry}": there is no round {round_}; '
                f"rounds are counted from 0 here, and the last one is {rounds - 1}"
            )
        unknown = [c for c in sorted(clients) if not 0 <= c < config.federation.clients_wanted]
        if unknown:
            number = config.federation.clients_wanted
            raise CafedclError(
                f'federation.drop: "{entry}": there is no client {unknown[0]}; '
                f"clients are counted from 0, and the last one is {number - 1}"
            )
        schedule.setdefault(round_, set()).update(clients)
    return schedule


def check_rates(config: Config, method: Method) -> None:
    """Refuse steps of different sizes where the method relies on those of plain SGD."""
    if config.train.optimizer != "sgd" and method.needs_one_rate:
        raise CafedclError(
            f"train.optimizer = {config.train.optimizer}: the method {method.name} needs the steps "
            "of sgd; leave it out"
        )
    if config.train.encoder_factor != 1 and method.needs_one_rate:
        raise CafedclError(
            f"train.encoder_lr = {config.train.encoder_lr:g}: the method {method.name} needs one "
            "learning rate for all weights; leave it out"
        )


def check_attack(config: Config) -> None:
    """Refuse an attack that never begins."""
    rounds = config.federation.rounds
    if config.attack.since > rounds:
        raise CafedclError(
            f"attack.since = {config.attack.since}: the run has {rounds} rounds, so nobody would "
            f"lie; use at most {rounds}"
        )


def check_stored_models(config: Config) -> None:
    """Refuse to store clients' own models in a run that hides clients or their images."""
    if config.store.own and config.privacy.kind != "none":
        raise CafedclError(
            "store.own: clients' own models are not private; leave out one of store.own and privacy"
        )


def check_scores(task: Task) -> None:
    """Refuse a run in which no model is scored."""
    if not task.scores_own and not task.has_server_model:
        raise CafedclError(
            f"evaluate.own_every = 0: the method {task.method.name} has no server model, so "
            "nothing would be scored; use at least 1"
        )


def check_personal(method: Method) -> None:
    """Refuse a method whose description of its personal weights is not a regular expression."""
    try:
        re.compile(method.personal)
    except (re.error, TypeError) as error:
        raise CafedclError(
            f"method {method.name}: personal = '{method.personal}' is not a regular expression: "
            f"{error}"
        ) from None


def personal_remarks(task: Task) -> Iterator[str]:
    """Yield a remark if the method describes personal weights but the model has none."""
    pattern = task.method.personal
    if pattern and not task.personal:
        names = ", ".join(name for name in task.initial if not name.startswith(ENCODER))
        yield (
            f"method {task.method.name}: personal = '{pattern}' matches no weight of this "
            f"model, so all are averaged; the names begin with {ENCODER}, or are "
            f"{names or 'these alone'}"
        )


def check_crop(config: Config, shape: Shape) -> None:
    """Refuse a crop whose padding is as large as the image: it could consist of padding only."""
    crop = config.train.crop
    smallest = min(shape[1:])
    if crop >= smallest:
        raise CafedclError(
            f"train.crop = {crop}: the padding must be smaller than the images, which have "
            f"{shape[1]}×{shape[2]} pixels; use at most {smallest - 1}"
        )


def check_replies(config: Config, clients: int) -> None:
    """Refuse a number of replies that no round can reach."""
    sampled = config.federation.participants(clients)
    if config.federation.min_replies > sampled:
        raise CafedclError(
            f"federation.min_replies = {config.federation.min_replies}: only {sampled} of "
            f"{clients} clients take part in a round, so that every round would be skipped"
        )


def check_levels(config: Config, method: Method, network: Network) -> None:
    """Refuse a model without stages for a method that uses features of several depths."""
    if method.uses_levels and not isinstance(network.encoder, Encoder):
        raise CafedclError(
            f"model '{config.model.name}': it has no stages, which the method {method.name} needs; "
            "derive it from cafedcl.extend.Encoder, or choose another model or method"
        )


def check_trainable(config: Config, method: Method, network: Network) -> None:
    """Refuse a network in which there is nothing to train."""
    if not any(weight.requires_grad for weight in network.parameters()):
        if not config.model.freeze:
            raise CafedclError(
                f"model '{config.model.name}': it has no weights, and the method {method.name} "
                "trains nothing but the encoder; choose another model or method"
            )
        can_project = hasattr(method.options, "features")
        raise CafedclError(
            f"model.freeze = {config.model.freeze}: the method {method.name} trains nothing but "
            "the encoder; freeze a part of it, "
            + ("set method.features = projected, " if can_project else "")
            + "or choose another method"
        )
