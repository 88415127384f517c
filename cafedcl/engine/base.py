"""What an engine is, and the bench it works at: all that does not change between rounds."""

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor

from cafedcl.core.contract import Failure, Job, Reply
from cafedcl.core.tensors import Tensors

Results = Generator[Reply | Failure, None, None]
Pending = Callable[[], Tensor]
"""Waits for what has been begun, and returns it."""


class Engine(Protocol):
    """Runs client jobs; results come in any order."""

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round; closing the results gives up on those that are not done."""

    def predict(self, tensors: Tensors) -> Pending:
        """Begin to predict the test images by the server's model (``model/…`` and ``anchors/…``).

        The predictions are to be waited for before the engine is asked for anything else.
        """

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""

    def close(self) -> None:
        """Let go of processes and memory."""


@runtime_checkable
class Sites(Protocol):
    """An engine whose clients test on images of their own, which only they have."""

    def survey(self, tensors: Tensors) -> Tensors:
        """Return how the server's model does at every client: ``tested`` and ``all``, each
        (clients, classes).
        """
