"""Which kind of privacy a run has."""

from cafedcl.config.sections import Config
from cafedcl.federation.client_privacy import ClientPrivacy, check_clients, check_step
from cafedcl.federation.record_privacy import RecordPrivacy, check_loss, check_records
from cafedcl.federation.spending import Spending
from cafedcl.methods import find_method
from cafedcl.methods.base import Method
from cafedcl.task.task import Task


def make_privacy(config: Config, task: Task) -> Spending:
    """Return what tracks a run's privacy; raises CafedclError for privacy that is impossible."""
    kinds = {"none": Spending, "clients": ClientPrivacy, "records": RecordPrivacy}
    return kinds[config.privacy.kind](config, task)


def check_private_method(config: Config) -> None:
    """Raise CafedclError for privacy that the method cannot have, whatever images sites have."""
    if config.privacy.kind == "none":
        return
    cls, _ = find_method(config.method.name)
    try:
        # What a method declares about its steps hardly ever depends on its size.
        method: Method = cls(config.method.options, 2, 64)
    except Exception:
        return  # it is checked later, when the sites have reported their classes
    if config.privacy.kind == "clients":
        check_step(config, method)
    elif config.privacy.kind == "records":
        check_loss(method)


def check_privacy(config: Config, task: Task) -> None:
    """Raise CafedclError for impossible privacy, without the library that computes ε."""
    if config.privacy.kind == "clients":
        check_clients(config, task)
    elif config.privacy.kind == "records":
        check_records(config, task)
