"""The CUDA engine: training steps captured once and replayed for every client."""
