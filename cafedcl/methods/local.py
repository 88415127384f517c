"""A reference for federated methods: every client trains alone."""

from cafedcl.methods.fedavg import FedAvg


class Local(FedAvg):
    """FedAvg's objective; nothing travels, and every weight stays with its client."""

    name = "local"
    paper = "reference: no federation"
    year = 2017
    travels = "nothing"
    personal = ".*"
    averages = None
