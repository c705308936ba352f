"""The queries of a table whose contract has the row alone: what they are, as text and as descriptors."""
