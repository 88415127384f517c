"""The options of clients' training: duration, optimizer, and how images are transformed."""

from dataclasses import dataclass

from cafedcl.config.kinds import unused_option
from cafedcl.config.options import fields_by_name, option

MOST_IN_BATCH = 65_536
"""The most images in a batch."""
OPTIMIZERS: dict[str, tuple[str, ...]] = {"sgd": ("momentum",), "adamw": ("beta1", "beta2")}
"""The clients' optimizers, and the options that only one of them has."""
SCHEDULES: dict[str, tuple[str, ...]] = {
    "exponential": ("lr_decay", "lr_decay_in_round"),
    "cosine": (),
}
"""How the learning rate falls from round to round, and the options that only one of them has."""
LARGEST_ADAMW_RATE = 0.05
"""AdamW moves every weight by about the learning rate, so networks diverge above this."""


@dataclass(frozen=True)
class TrainOptions:
    """Local training, as in the paper."""

    epochs: int = option(5, "local epochs per round", low=1, high=10_000)
    iterations: int = option(
        10,
        "steps per epoch; the batch size is the client's number of images over this",
        low=1,
        high=1_000_000,
    )
    batch_size: int = option(
        0, "fixed batch size; 0: given by `iterations`", low=0, high=MOST_IN_BATCH
    )
    optimizer: str = option(
        "sgd",
        "the clients' optimizer; its state starts fresh in every round",
        choices=tuple(OPTIMIZERS),
    )
    lr: float = option(0.1, "learning rate; for adamw about 0.001", above=0.0)
    encoder_lr: float = option(
        0.0,
        "learning rate of the encoder, which falls like lr; 0: that of the other weights",
        low=0.0,
    )
    schedule: str = option(
        "exponential",
        "how the learning rate falls: by the factor lr_decay after every round (exponential), or "
        "along half a cosine to 0 after the last round",
        choices=tuple(SCHEDULES),
    )
    lr_decay: float = option(
        0.998, "exponential: factor for the learning rate after every round", above=0.0, high=1.0
    )
    lr_decay_in_round: bool = option(
        False,
        "exponential: also decay the learning rate after every local epoch, as FedRCL's code does",
    )
    warmup: int = option(
        0, "rounds in which the learning rate rises linearly at the start", low=0, high=100_000
    )
    momentum: float = option(0.0, "sgd: momentum", low=0.0, high=1.0)
    beta1: float = option(
        0.9, "adamw: decay β₁ of the mean of gradients", low=0.0, high=0.9999, advanced=True
    )
    beta2: float = option(
        0.999, "adamw: decay β₂ of the mean of squares", low=0.0, high=0.9999, advanced=True
    )
    weight_decay: float = option(1e-3, "weight decay", low=0.0)
    clip: float = option(10.0, "maximum gradient norm; 0: no clipping", low=0.0)
    label_smoothing: float = option(
        0.0,
        "share ε of the target that cross-entropies spread over all classes evenly",
        low=0.0,
        high=0.99,
    )
    flip: bool = option(False, "flip training images horizontally at random")
    crop: int = option(
        0,
        "pixels of padding before a random crop, fewer than the image has; 0: no crop",
        low=0,
        high=64,
    )
    rotate: float = option(
        0.0, "largest angle in degrees by which images are rotated at random", low=0.0, high=180.0
    )
    jitter: float = option(
        0.0,
        "strength of colour jitter: brightness, contrast and saturation are multiplied by random "
        "factors between 1−jitter and 1+jitter",
        low=0.0,
        high=1.0,
    )
    randaugment: int = option(
        0, "random operations on every image, as in RandAugment; 0: none", low=0, high=10
    )
    magnitude: int = option(
        9, "strength of RandAugment's operations, out of 30", low=1, high=30, advanced=True
    )
    cutout: int = option(
        0, "side of a square in pixels that is cut out at a random place; 0: none", low=0, high=4096
    )
    transform: str = option(
        "", "a random transform of your own for training images, as MODULE:NAME (docs/extending.md)"
    )

    @property
    def encoder_factor(self) -> float:
        """The encoder's learning rate in units of ``lr``."""
        return self.encoder_lr / self.lr if self.encoder_lr else 1.0

    @property
    def depends_on_rounds(self) -> bool:
        """Whether training depends on the number of rounds."""
        return self.schedule == "cosine"

    def contradiction(self) -> str | None:
        """Return why options contradict each other, or None."""
        for what, kinds, kind in (
            ("optimizer", OPTIMIZERS, self.optimizer),
            ("schedule", SCHEDULES, self.schedule),
        ):
            foreign = {name for names in kinds.values() for name in names} - {*kinds[kind]}
            used = fields_by_name(type(self)).keys() - foreign
            problem = unused_option(self, used, kinds, what, kind)
            if problem is not None:
                return problem
        if self.optimizer == "adamw" and max(self.lr, self.encoder_lr) > LARGEST_ADAMW_RATE:
            return (
                f"lr = {max(self.lr, self.encoder_lr):g}: AdamW needs a smaller learning rate; "
                f"use about 0.001, at most {LARGEST_ADAMW_RATE}"
            )
        return None
