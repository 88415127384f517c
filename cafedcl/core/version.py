"""The version of the package: read by the build, the command line and every run folder."""

__version__ = "0.2.0"
