"""Subscribe: what a request asks for, and how rows and changes come to it, from this store or other gateways."""
