"""Terminal output: progress, tables and maps."""
