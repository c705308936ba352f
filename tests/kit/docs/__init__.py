"""The documents, as tests read them."""
