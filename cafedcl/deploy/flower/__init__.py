"""The flower engine: jobs over the network. Nothing outside this folder imports Flower."""
