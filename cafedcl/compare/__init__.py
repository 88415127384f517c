"""Many runs in one command: comparisons, sweeps, searches and studies."""
