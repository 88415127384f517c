"""Many runs in one command: comparisons, sweeps and searches, scheduled over cores and devices."""
