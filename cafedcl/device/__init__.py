"""Streams, captures and packed copies: how work is queued on a device."""
