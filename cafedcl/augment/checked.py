"""The steps of a tail augmentation, each with a check of what it returns.

A wrong result raises CafedclError with the step, its file and its line.
"""

from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages
from cafedcl.core.errors import CafedclError, place_of
from cafedcl.core.returned import named_tensors, wrong_result
from cafedcl.core.tensors import Tensors


def learn(augmenter: Augmenter, client: ClientImages) -> Tensors:
    """Return the client's new memory: tensors by name."""
    return named_tensors(augmenter, "learn", augmenter.learn(client))


def make(augmenter: Augmenter, client: ClientImages) -> SyntheticImages:
    """Return the synthetic images of a client, in the requested number per class."""
    images: object = augmenter.make(client)
    if not isinstance(images, SyntheticImages):
        expected = "SyntheticImages(x, y) is expected"
        raise wrong_result(augmenter, "make", type(images).__name__, expected)
    problem = images.problem(client.x.shape[1:], client.synthetic_counts)
    if problem:
        place = place_of(augmenter.make)
        raise CafedclError(f"{augmenter.title}: its make returns {problem}{place}")
    return images
