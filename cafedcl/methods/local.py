"""A reference for federated methods: every client trains alone."""

from cafedcl.methods.fedavg import FedAvg


class Local(FedAvg):
    """FedAvg's objective; nothing is sent, and every weight stays with its client."""

    name = "local"
    paper = "reference: no federation"
    year = 0
    sends = "nothing"
    personal = ".*"
    averages = None
