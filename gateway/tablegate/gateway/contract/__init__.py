"""What a table is: contracts, keys, partitions, versions, tokens. No network, no clock; `descriptors` reads files."""
