"""Tail classes sampled in the space of features, around their prototype, with the spread of head
classes.
"""

import numpy as np
from torch import Tensor

from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages
from cafedcl.functional.contrast import class_means


class Gaussian(Augmenter):
    """Samples features around a tail class's prototype, with the spread of head classes.

    They are z = z(x_i) + (p_c − z₀(x_i)) + σ ε for real images x_i of the class. z₀ and p_c are the
    features and the class mean under the received weights, σ² the variance within the client's head
    classes. So the features are N(p_c, σ²) when training begins, move with the encoder, and pass
    gradients to it.
    """

    name = "gaussian"
    shifts = True

    def make(self, own: ClientImages) -> SyntheticImages:
        """Return real images, and what is to be added to their features."""
        labels = own.labels()
        z = own.features()
        picked = own.put(own.pick(labels))
        noise = own.put(own.draws.standard_normal((len(labels), z.shape[1]), np.float32))
        made = own.put(own.wanted.astype(np.float32))
        y = own.put(labels)
        means, _ = class_means(z, own.y, self.classes)
        shift = means[y] - z[picked] + head_spread(z, own.y, made == 0) * noise
        return SyntheticImages(own.x[picked], y, shift=shift, signals={"synthetic": made})


def head_spread(z: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """Return the standard deviation of every feature within the head classes; zero if each has but
    one image.
    """
    means, counts = class_means(z, y, len(head))
    squares = ((z - means[y]).square() * head[y][:, None]).sum(0)
    freedom = ((counts - 1).clamp_min(0) * head).sum()
    return (squares / freedom.clamp_min(1)).sqrt()
