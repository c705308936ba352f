"""Key → gateway: which gateways have a partition, and asking them."""
