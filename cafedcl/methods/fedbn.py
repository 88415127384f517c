"""FedBN (Li et al., ICLR 2021): normalisation layers stay with their client."""

from cafedcl.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg on all weights but those of normalisation layers, which are never averaged.

    Like the authors' code it knows them by name (``norm`` or ``bn``), so it also keeps a GroupNorm
    local. On an encoder without normalisation it is FedAvg. There is no server model: every client
    predicts with its own normalisation.
    """

    name = "fedbn"
    year = 2021
    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization"
    travels = "model without normalisation"
    personal = r".*(norm|bn)\d*\..*"
