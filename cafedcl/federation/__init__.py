"""The round loop, the run folder it is recorded in, and the watchers of a run."""
