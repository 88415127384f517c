"""The theory."""
