"""Running across machines: thin wrappers over Flower's own commands that do the fiddly part."""
