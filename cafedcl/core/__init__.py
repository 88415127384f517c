"""What everything rests on: the contract, tensors, random streams, files and errors."""
