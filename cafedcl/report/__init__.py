"""Tables, the report and the figures: everything here reads run folders and nothing else."""
