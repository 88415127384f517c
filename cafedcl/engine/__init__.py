"""Engines run client jobs. The same jobs give the same numbers in every engine, up to rounding."""
