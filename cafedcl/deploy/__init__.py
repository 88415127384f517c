"""Running across machines: thin wrappers around Flower that handle the fiddly parts."""
