"""A task that is measured within a moment."""

from dataclasses import replace

from cafedcl.speed.measure import WORKLOADS

SMALL = replace(WORKLOADS["digits"], model="mlp", clients=3, images=25, batch=8, epochs=2)
