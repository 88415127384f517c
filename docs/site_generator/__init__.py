"""The parts of the website that are made from the code when it is built."""
