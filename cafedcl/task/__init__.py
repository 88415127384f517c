"""What a run is about: method, network, data, and how a config becomes them."""
