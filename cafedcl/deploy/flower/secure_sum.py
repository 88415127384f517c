"""Secure aggregation: the server learns the sum of the sites' vectors, and no single one.

It is the protocol of Bonawitz et al. (CCS 2017) in four phases: public keys, encrypted shares,
masked vectors, unmasking. Every pair of sites agrees on a mask that one adds and the other
subtracts, and every site adds one of its own. Sites that stay reveal shares of their own masks, and
of the keys of sites that dropped out in between, so the masks can be removed only from the sum.

Key agreement, encryption and secret sharing are Flower's primitives. Masks are the key stream of
AES in counter mode, from the package cryptography: Flower's own generator of masks has a seed of 32
bits, which can be found by trying all of them.
"""

import base64
import os
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

Masked = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]
FEWEST = 3
"""The fewest sites in a sum: with two, each could compute the other's vector from the sum."""
PublicKeys = tuple[str, str]
"""The public keys for encryption and for masks, as text."""


def threshold(members: int) -> int:
    """Return how many sites must stay to the end: more than two thirds."""
    return 2 * members // 3 + 1


def scale(members: int) -> int:
    """Return the number of steps between 0 and 1 with which sums of integers do not overflow."""
    return (2**31 - 1) // members


def quantised(vector: Floats, members: int) -> Masked:
    """Return a vector of norm at most 1 as whole numbers, whose norm is also at most 1."""
    steps = scale(members)
    # Rounding moves every coordinate by half a step at most.
    rounding = 0.5 * np.sqrt(len(vector)) / steps
    length = np.linalg.norm(vector)
    shrunk = vector * min(1.0, (1 - rounding) / max(length, 1e-30))
    whole: Masked = np.rint(shrunk * steps).astype(np.int64).astype(np.uint32)
    return whole


def sum_of(numbers: Masked, members: int) -> Floats:
    """Return the sum of vectors from that of their whole numbers."""
    summed: Floats = numbers.view(np.int32).astype(np.float64) / scale(members)
    return summed


def mask(key: bytes, size: int) -> Masked:
    """Return the mask of a secret key of 32 bytes: the key stream of AES-256 in counter mode.

    Every key makes one mask, so the counter may start at 0.
    """
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * size)), np.uint32)


def pair_mask(private: bytes, public: str, size: int) -> Masked:
    """Return the mask that two sites share."""
    key = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public.encode()))
    return mask(base64.urlsafe_b64decode(key), size)


class SecureMember:
    """A site's side of one sum. It is used once: no key serves two sums."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.encryption, encryption_public = generate_key_pairs()
        masking, masking_public = generate_key_pairs()
        self.masking = private_key_to_bytes(masking)
        self.own_seed = os.urandom(32)
        self.public: PublicKeys = (
            public_key_to_bytes(encryption_public).decode(),
            public_key_to_bytes(masking_public).decode(),
        )
        self.keys: dict[int, PublicKeys] = {}
        self.held: dict[int, tuple[bytes, bytes]] = {}
        """The shares received from others: of their own mask, and of their key for masks."""
        self.unmasked = False

    def shares(self, keys: Mapping[int, PublicKeys]) -> dict[int, str]:
        """Return this site's shares, encrypted for each of the others."""
        if self.keys or keys.get(self.client) != self.public:
            raise ValueError("these are not the keys of this sum")
        if len(keys) < FEWEST:
            raise ValueError(f"a sum needs at least {FEWEST} sites, and there are {len(keys)}")
        self.keys = dict(keys)
        members = sorted(keys)
        needed = threshold(len(members))
        seeds = create_shares(self.own_seed, needed, len(members))
        secrets = create_shares(self.masking, needed, len(members))
        tokens: dict[int, str] = {}
        for other, seed, secret in zip(members, seeds, secrets, strict=True):
            if other == self.client:
                self.held[other] = (seed, secret)
                continue
            plain = share_keys_plaintext_concat(self.client, other, seed, secret)
            tokens[other] = encrypt(self._key_with(other), plain).decode()
        return tokens

    def masked(self, vector: Floats, tokens: Mapping[int, str]) -> Masked:
        """Return this site's vector under all masks; ``tokens`` are the shares of the others."""
        if len(self.held) != 1 or len(tokens) + 1 < threshold(len(self.keys)):
            raise ValueError("there are too few shares, or they came twice")
        for other, token in tokens.items():
            plain = decrypt(self._key_with(other), token.encode())
            source, target, seed, secret = share_keys_plaintext_separate(plain)
            if (source, target) != (other, self.client):
                raise ValueError("a share is for somebody else")
            self.held[other] = (seed, secret)
        total = quantised(vector, len(self.keys)) + mask(self.own_seed, len(vector))
        for other in tokens:
            shared = pair_mask(self.masking, self.keys[other][1], len(vector))
            total = total + shared if self.client < other else total - shared
        return total

    def unmask(self, survivors: Iterable[int], dropped: Iterable[int]) -> dict[int, str]:
        """Return a share for every site: of its mask if it stayed, of its key if it dropped out.

        Never both, and only once: with both, the site's vector could be read.
        """
        stayed = set(survivors)
        gone = set(dropped)
        consistent = not stayed & gone and stayed | gone == set(self.held)
        enough = len(stayed) >= threshold(len(self.keys))
        if self.unmasked or not consistent or not enough or self.client not in stayed:
            raise ValueError("these sites must not be unmasked")
        self.unmasked = True
        revealed = {client: self.held[client][0] for client in stayed}
        revealed |= {client: self.held[client][1] for client in gone}
        return {client: share.hex() for client, share in revealed.items()}

    def _key_with(self, other: int) -> bytes:
        public = bytes_to_public_key(self.keys[other][0].encode())
        return generate_shared_key(self.encryption, public)


def unmasked_sum(
    vectors: Mapping[int, Masked],
    dropped: Iterable[int],
    keys: Mapping[int, PublicKeys],
    shares: Mapping[int, Mapping[int, str]],
) -> Floats:
    """Return the sum of the vectors of the sites that stayed.

    ``dropped`` gave shares but no vector; ``shares`` are those that each site revealed. Raises
    ValueError if there are too few, or they do not fit.
    """
    if len(shares) < threshold(len(keys)):
        raise ValueError(f"{len(shares)} of {len(keys)} sites stayed to the end, which is too few")
    size = len(next(iter(vectors.values())))
    total = np.zeros(size, np.uint32)

    def secret_of(client: int) -> bytes:
        return combine_shares([bytes.fromhex(given[client]) for given in shares.values()])

    for client, vector in vectors.items():
        total += vector
        total -= mask(secret_of(client), size)
    for client in dropped:
        private = secret_of(client)
        for other in vectors:
            shared = pair_mask(private, keys[other][1], size)
            # The site that stayed has added or subtracted the shared mask; undo that.
            total = total - shared if other < client else total + shared
    return sum_of(total, len(keys))
