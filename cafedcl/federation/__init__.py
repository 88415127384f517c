"""The round loop, the run folder it is recorded in, and the callbacks of a run."""
