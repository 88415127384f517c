"""The flower engine: the same jobs over the network, on Flower. Nothing outside this folder imports
Flower.
"""
