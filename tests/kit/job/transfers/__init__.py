"""Accounts of banks, between which a source moves units: the sum of each bank stays the same."""
