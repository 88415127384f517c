"""Models as files for other programs, each with a model card."""
