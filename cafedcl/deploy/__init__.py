"""Running across machines: thin wrappers over Flower's own commands that do the fiddly part."""

FLOWER = "'flwr[simulation]>=1.41,<1.42'"
"""The requirement that brings what deployments need, as for pip."""
