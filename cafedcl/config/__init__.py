"""The sections of a config and how their options are declared."""
