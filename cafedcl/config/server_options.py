"""The options of the server's step: an optimizer on the average of the clients' models."""

from dataclasses import dataclass

from cafedcl.config.kinds import unused_option
from cafedcl.config.options import option

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "momentum": ("lr", "momentum"),
    "acg": ("momentum",),
    "adam": ("lr", "momentum", "beta2", "tau"),
}
"""The server's optimizers and their options."""
LEARNING_RATES = {"momentum": 1.0, "adam": 0.01}
"""The server's learning rate where the config does not give one."""


@dataclass(frozen=True)
class ServerStepOptions:
    """The server's step, for every method that averages a model."""

    optimizer: str = option(
        "none",
        "what the server does with the average of the clients' models. none: it is the new model; "
        "momentum: FedAvgM; adam: FedAdam; acg: FedACG, clients start ahead of the server's model, "
        "by its momentum",
        choices=tuple(OPTIMIZERS),
    )
    lr: float = option(
        0.0, "momentum, adam: the server's learning rate; 0: 1 for momentum, 0.01 for adam", low=0.0
    )
    momentum: float = option(
        0.9, "momentum β of the server's step; β₁ of adam", low=0.0, high=0.9999
    )
    beta2: float = option(
        0.99, "adam: decay β₂ of the mean of squares", low=0.0, high=0.9999, advanced=True
    )
    tau: float = option(
        0.001, "adam: added to the root of the mean of squares", above=0.0, advanced=True
    )
    average: float = option(
        0.0,
        "decay ρ of a moving average over rounds, which is scored and saved as the server's model "
        "while clients get the live one; 0: no average; 1: the mean of all rounds",
        low=0.0,
        high=1.0,
    )

    @property
    def learning_rate(self) -> float:
        """The learning rate, chosen by the optimizer where it is 0."""
        return self.lr or LEARNING_RATES.get(self.optimizer, 1.0)

    @property
    def is_plain(self) -> bool:
        """Whether the average of the clients' models is the new model, and is scored."""
        return self.optimizer == "none" and not self.average

    def contradiction(self) -> str | None:
        """Return which option this optimizer would ignore, or None."""
        used = {"optimizer", "average", *OPTIMIZERS[self.optimizer]}
        return unused_option(self, used, OPTIMIZERS, "optimizer", self.optimizer)
