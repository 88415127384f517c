"""Engines run client jobs and know nothing of methods. The same jobs give the same numbers in every
engine.
"""
