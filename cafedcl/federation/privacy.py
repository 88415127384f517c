"""Which kind of privacy a run has."""

from cafedcl.config.sections import Config
from cafedcl.federation.client_privacy import ClientPrivacy, check_clients, check_step
from cafedcl.federation.record_privacy import RecordPrivacy, check_loss, check_records
from cafedcl.federation.spending import Spending
from cafedcl.methods import find_method
from cafedcl.methods.base import Method
from cafedcl.task.task import Task


def make_privacy(config: Config, task: Task) -> Spending:
    """Return what keeps account of a run's privacy; raises CafedclError for what cannot be had."""
    kinds = {"none": Spending, "clients": ClientPrivacy, "records": RecordPrivacy}
    return kinds[config.privacy.kind](config, task)


def check_private_method(config: Config) -> None:
    """Raise CafedclError for privacy that the method cannot have, whatever images sites have."""
    if config.privacy.kind == "none":
        return
    cls, _ = find_method(config.method.name)
    try:
        # What a method says of its steps hardly ever depends on its size.
        method: Method = cls(config.method.options, 2, 64)
    except Exception:
        return  # then it is checked when the sites have said how many classes there are
    if config.privacy.kind == "clients":
        check_step(config, method)
    elif config.privacy.kind == "records":
        check_loss(method)


def check_privacy(config: Config, task: Task) -> None:
    """Raise CafedclError for what cannot be had, without the library that computes ε."""
    if config.privacy.kind == "clients":
        check_clients(config, task)
    elif config.privacy.kind == "records":
        check_records(config, task)
