"""Whether a client's updates agree with those of its peers, the clients with similar classes.

Updates of honest clients with different classes may well point away from each other. So each client
is compared with those that have the same classes, by the enrolled counts, and over many rounds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.core.tensors import Tensors
from cafedcl.functional.robust import label_overlap, middle, peer_agreement

AGREEMENT = "defence/agreement"
"""The agreement of every client so far, each round discounted by its age."""
VISITS = "defence/visits"
"""The number of rounds in this sum, discounted in the same way."""
MEMORY = 0.9
"""Discount per round. One round says little: the noise of a batch exceeds the agreement."""
LEAST = 0.25
"""The least standing, relative to the median client's. Noise has a standing of about 0."""
FEWEST = 3
"""The fewest clients that are kept: among fewer, nobody can tell which one is the outlier."""
REPEATS = 3
"""How often peers are chosen again, without those just found to disagree."""


class Peers:
    """Keeps the standing of every client: its mean agreement with its peers."""

    def __init__(self, counts: Tensor, device: torch.device) -> None:
        self.counts = counts.cpu()
        self.device = device

    def start(self) -> Tensors:
        """Return what is kept before the first round."""
        zeros = torch.zeros(len(self.counts), dtype=torch.float64, device=self.device)
        return {AGREEMENT: zeros, VISITS: zeros.clone()}

    def judge(self, clients: list[int], updates: Tensor, kept: Tensors) -> tuple[Tensor, Tensors]:
        """Return which of the clients are trusted, and what is kept after this round.

        ``updates`` is (clients, weights). A client that shares no class with the others cannot be
        judged: it is trusted, and its standing stays.
        """
        overlap = label_overlap(self.counts[clients])
        directions = F.normalize(updates.float(), dim=1)
        cosines = (directions @ directions.T).cpu().double()
        sums = kept[AGREEMENT].to("cpu", copy=True)
        numbers = kept[VISITS].to("cpu", copy=True)
        before = sums[clients]
        visits = numbers[clients]
        trusted = torch.ones(len(clients), dtype=torch.bool)
        for _ in range(REPEATS):
            agreement, has_peers = peer_agreement(cosines, overlap * trusted)
            total = torch.where(has_peers, MEMORY * before + agreement, before)
            number = torch.where(has_peers, MEMORY * visits + 1, visits)
            again = ~has_peers | _stands(total / number.clamp_min(1), has_peers)
            if again.sum() < FEWEST or torch.equal(again, trusted):
                break
            trusted = again
        sums[clients] = total
        numbers[clients] = number
        return trusted, {AGREEMENT: sums.to(self.device), VISITS: numbers.to(self.device)}


def _stands(standing: Tensor, judged: Tensor) -> Tensor:
    """Return whose standing is not far below that of the median client."""
    if not judged.any():
        return judged
    usual = float(middle(standing[judged]))
    return standing >= max(LEAST * usual, 0.0)
