"""Everything that a method, model, tail augmentation or data set of your own needs, in one import.

    from cafedcl.extend import Batch, FedAvg, Network, Tensors, Visit, option

A method is one class derived from `Method`, or from a method that is close to it. docs/extending.md
explains how, and `cafedcl.testing.check_method` tests yours. Every name below has its own
docstring. Equation numbers are those of the CAFedCL paper.

What a method is made of
    `Method`, `FedAvg`, `NoOptions`, `option`; what it gets and returns: `Batch`, `Visit`, `Client`,
    `Up`, `Field`, `Tensors`; what a client may claim: `Claims`, from the `Enrolment`; the means
    that the server takes, for privacy: `Averages`, `ClassMeans`.

Losses and prototypes
    `unit` (x/‖x‖), `weighted_average` and `cross_entropy` (by batch.weight), `class_sums` and
    `class_means` (Eq. 1), `class_scatter` (variance per class), `start_sums` and `running_means`
    (over an epoch, in scratch tensors), `cosine_logits`, `i2p_loss` (Eq. 4), `log_prior`
    (calibrates logits to a client's labels), `align_loss` (Eq. 14), `geometry_loss` (Eq. 15),
    `distances` (all pairs); fixed anchors: `simplex` (equiangular tight frame), `orthonormal`.

Server steps
    `Aggregator`, `Average` (Eq. 12), `Entries` (what clients sent per class, as tables),
    `normalise` (weights over their sum), `uniform` (equal weights), `mean_prototypes` (Eqs. 2, 7,
    10), `merge_prototypes` (the table of prototypes after a round), `no_prototypes` (before the
    first); a server that trains: `draw_batches`, `minimise`; `k_means`.

Models, augmentations, data
    `Encoder`, `Network`, `Shape`; `Augmenter`, `TailOptions` (what its options derive from),
    `ClientImages`, `SyntheticImages`; `Transform` (a random change of training images); `Dataset`.

Names of tensors
    `under`, `without` and `prefixed` select and rename entries of a dict of tensors.
"""

from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages, TailOptions
from cafedcl.augment.transforms import Transform
from cafedcl.config.options import option
from cafedcl.core.contract import (
    Averages,
    Batch,
    Claims,
    ClassMeans,
    Client,
    Enrolment,
    Field,
    Shape,
    Up,
    Visit,
)
from cafedcl.core.tensors import Tensors, prefixed, under, without
from cafedcl.data.dataset import Dataset
from cafedcl.functional.aggregation import (
    Average,
    Entries,
    mean_prototypes,
    merge_prototypes,
    no_prototypes,
    normalise,
    uniform,
)
from cafedcl.functional.contrast import (
    align_loss,
    class_means,
    class_scatter,
    class_sums,
    cosine_logits,
    cross_entropy,
    distances,
    geometry_loss,
    i2p_loss,
    log_prior,
    orthonormal,
    running_means,
    simplex,
    start_sums,
    unit,
    weighted_average,
)
from cafedcl.functional.kmeans import k_means
from cafedcl.functional.server_sgd import draw_batches, minimise
from cafedcl.methods.base import Aggregator, Method, NoOptions
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Encoder, Network

__all__ = [
    "Aggregator",
    "Augmenter",
    "Average",
    "Averages",
    "Batch",
    "Claims",
    "ClassMeans",
    "Client",
    "ClientImages",
    "Dataset",
    "Encoder",
    "Enrolment",
    "Entries",
    "FedAvg",
    "Field",
    "Method",
    "Network",
    "NoOptions",
    "Shape",
    "SyntheticImages",
    "TailOptions",
    "Tensors",
    "Transform",
    "Up",
    "Visit",
    "align_loss",
    "class_means",
    "class_scatter",
    "class_sums",
    "cosine_logits",
    "cross_entropy",
    "distances",
    "draw_batches",
    "geometry_loss",
    "i2p_loss",
    "k_means",
    "log_prior",
    "mean_prototypes",
    "merge_prototypes",
    "minimise",
    "no_prototypes",
    "normalise",
    "option",
    "orthonormal",
    "prefixed",
    "running_means",
    "simplex",
    "start_sums",
    "under",
    "uniform",
    "unit",
    "weighted_average",
    "without",
]
