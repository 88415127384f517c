"""Pure functions: the losses, confidences, averages and metrics that methods share."""
