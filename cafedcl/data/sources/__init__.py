"""Public data sets, one file per family."""
