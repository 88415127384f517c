"""The version of the package, as in pyproject.toml; a test compares the two."""

__version__ = "0.2.0"
