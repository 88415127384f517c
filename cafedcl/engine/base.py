"""The interface of an engine, which runs client jobs and knows nothing about methods."""

from collections.abc import Callable, Generator, Iterable
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from cafedcl.core.contract import Failure, Job, Reply
from cafedcl.core.tensors import Tensors

Results = Generator[Reply | Failure, None, None]
Pending = Callable[[], Tensor]
"""Waits for work that was started, and returns its result."""


class Engine(Protocol):
    """Runs client jobs; results come in any order."""

    name: ClassVar[str]
    """Its name in a config."""

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round; closing the results abandons unfinished ones."""

    def predict(self, tensors: Tensors) -> Pending:
        """Start to predict the test images by the server's model (``model/…`` and ``anchors/…``).

        The caller waits for the predictions before it asks the engine for anything else.
        """

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""

    def close(self) -> None:
        """End processes and free memory."""


@runtime_checkable
class SecureSites(Protocol):
    """An engine whose clients reveal only the sum of their contributions to the server."""

    def take_sum(self) -> Tensor | None:
        """Return the sum of the last round, once; None if too few clients stayed to the end."""

    def sum_traffic(self) -> dict[str, int]:
        """Return what clients sent for the last sum: ``up_floats`` (numbers) and ``up_bytes``.

        Without a sum it is empty: the traffic then follows from the replies.
        """


@runtime_checkable
class Sites(Protocol):
    """An engine whose clients test on images of their own, which only they have."""

    def survey(self, tensors: Tensors) -> Tensors:
        """Return how the server's model performs at every client.

        ``tested`` and ``all`` (those predicted correctly) are counts, (clients, classes).
        """
