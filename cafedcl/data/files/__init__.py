"""Reading and downloading files: archives, npz, idx and pickles that cannot run code."""
