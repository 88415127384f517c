"""A reference for federated methods: all data in one place."""

from cafedcl.methods.fedavg import FedAvg


class Central(FedAvg):
    """FedAvg with one client that has all data, in batches of an average client's size."""

    name = "central"
    paper = "reference: all data pooled"
    year = 0
    sends = "data"
    pooled = True
    averages = None
