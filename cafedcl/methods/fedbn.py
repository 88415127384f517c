"""FedBN (Li et al., ICLR 2021): normalisation layers stay with their client."""

from dataclasses import dataclass

from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Averages, Up
from cafedcl.functional.aggregation import uniform
from cafedcl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBNOptions:
    """The authors average clients equally; theirs all have the same number of images."""

    weights: str = option(
        "samples",
        "weights of clients in the average: their samples, or all equal as in the authors' code",
        choices=("samples", "uniform"),
    )


class FedBN(FedAvg):
    """FedAvg on all weights but those of normalisation layers, which are never averaged.

    Like the authors' code it finds them by name (``norm`` or ``bn``), so it also keeps a GroupNorm
    local. On an encoder without normalisation it is FedAvg. There is no server model: every client
    predicts with its own normalisation.
    """

    Options = FedBNOptions

    name = "fedbn"
    year = 2021
    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization"
    sends = "model without normalisation"
    personal = r".*(norm|bn)\d*\..*"
    averages = Averages()
    separable = True

    def __init__(self, options: FedBNOptions, classes: int, dim: int, clients: int = 1) -> None:
        super().__init__(options, classes, dim, clients)
        if options.weights == "uniform":
            self.averages = Averages(most=1.0)

    def weigh(self, ups: list[Up]) -> Tensor:
        if self.options.weights == "uniform":
            return uniform(len(ups))
        return super().weigh(ups)
