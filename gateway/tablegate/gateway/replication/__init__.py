"""Changelog to store."""
