"""SphereFed (Dong et al., ECCV 2022): a fixed orthonormal classifier on the sphere, calibrated."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Enrolment, Field, Up, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import orthonormal, unit, weighted_average
from cafedcl.functional.ridge import (
    fitted,
    moment_fields,
    moments,
    not_moments,
    summed,
    told_weight,
)
from cafedcl.methods.base import Method, own_mark
from cafedcl.models.base import Network


@dataclass(frozen=True)
class SphereFedOptions:
    """We had neither code nor the paper's text: the values are ours."""

    ridge: float = option(1.0, "ridge λ of the calibration, in images", above=0.0)
    calibrate: bool = option(True, "score the server's model with the calibrated classifier")


class SphereFed(Method):
    """‖A z − e_y‖² with unit features z and a fixed orthonormal A; models are averaged by samples.

    Federated calibration: clients send ZᵀZ and ZᵀY of the received model, and the server solves
    W = (ΣZᵀZ + λI)⁻¹ ΣZᵀY. The authors do so once, after the last round; here it is done in every
    round, on the encoder that the round began with, and for scoring only.
    """

    name = "spherefed"
    year = 2022
    Options = SphereFedOptions
    replayed = True
    paper = "Dong et al., SphereFed: Hyperspherical Federated Learning"
    sends = "model, second moments of features"
    predicts = "calibrated classifier; clients use the fixed one"

    def head(self) -> nn.Module:
        return nn.Identity()

    def start(self, model: Network) -> Tensors:
        frame = orthonormal(self.classes, self.dim)
        return {"anchors/frame": frame, "anchors/calibrated": frame.clone()}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        outputs = unit(model.features(batch.x)) @ visit.anchors["frame"].T
        wanted = F.one_hot(batch.y, self.classes).to(outputs.dtype)
        error = (outputs - wanted).square().sum(1)
        return {"mse": weighted_average(error, batch.weight)}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        h, y = visit.embed("train", "received")
        return moments(unit(h), y, told_weight(y, visit.client.counts.to(h))), {}

    def fields(self, model: Network) -> dict[str, Field]:
        return moment_fields(self.classes, self.dim)

    def contradiction(self, up: Up, enrolment: Enrolment) -> str | None:
        return not_moments(up.tensors, enrolment.counts[up.client])

    def remember(self, model: Network, visit: Visit) -> Tensors:
        return own_mark(visit.client)

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"anchors/calibrated": fitted(summed(ups), self.options.ridge)}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        served = self.options.calibrate and not memory
        frame = anchors["calibrated" if served else "frame"]
        return unit(model.features(x)) @ frame.T
