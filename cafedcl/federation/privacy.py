"""Which kind of privacy a run has."""

from cafedcl.config.sections import Config
from cafedcl.federation.client_privacy import ClientPrivacy, check_clients
from cafedcl.federation.record_privacy import RecordPrivacy, check_records
from cafedcl.federation.spending import Spending
from cafedcl.task.task import Task


def make_privacy(config: Config, task: Task) -> Spending:
    """Return what keeps account of a run's privacy; raises CafedclError for what cannot be had."""
    kinds = {"none": Spending, "clients": ClientPrivacy, "records": RecordPrivacy}
    return kinds[config.privacy.kind](config, task)


def check_privacy(config: Config, task: Task) -> None:
    """Raise CafedclError for what cannot be had, without the library that computes ε."""
    if config.privacy.kind == "clients":
        check_clients(config, task)
    elif config.privacy.kind == "records":
        check_records(config, task)
