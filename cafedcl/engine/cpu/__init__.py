"""The CPU engine: worker processes that train stacks of clients."""
