"""Gaussian augmentation of tail classes in feature space."""

import numpy as np
from torch import Tensor

from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages
from cafedcl.functional.contrast import class_means


class Gaussian(Augmenter):
    """Samples features around a tail class's prototype, with the variance of head classes.

    They are z = z(x_i) + (p_c − z₀(x_i)) + σ ε for real images x_i of the class. z₀ and p_c are the
    features and the class mean under the received weights, σ² the variance within the client's head
    classes. So the features are N(p_c, σ²) when training begins, move with the encoder, and pass
    gradients to it.
    """

    name = "gaussian"
    shifts = True

    def make(self, client: ClientImages) -> SyntheticImages:
        """Return real images, and the shifts of their features."""
        labels = client.synthetic_labels()
        z = client.features()
        picked = client.to_device(client.draw_same_class(labels))
        noise = client.to_device(
            client.draws.standard_normal((len(labels), z.shape[1]), np.float32)
        )
        made = client.to_device(client.synthetic_counts.astype(np.float32))
        y = client.to_device(labels)
        means, _ = class_means(z, client.y, self.classes)
        shift = means[y] - z[picked] + head_spread(z, client.y, made == 0) * noise
        return SyntheticImages(client.x[picked], y, shift=shift, signals={"synthetic": made})


def head_spread(z: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """Return every feature's standard deviation within head classes; 0 if each has one image."""
    means, counts = class_means(z, y, len(head))
    squares = ((z - means[y]).square() * head[y][:, None]).sum(0)
    freedom = ((counts - 1).clamp_min(0) * head).sum()
    return (squares / freedom.clamp_min(1)).sqrt()
