"""Benchmarks of the machine that cafedcl runs on."""
