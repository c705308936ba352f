"""Rows, history and positions."""
