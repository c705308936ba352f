"""The examples: contracts, declarations, sample events, and the demo that runs them on one machine."""

from pathlib import Path

CONTRACTS = Path(__file__).parent / "contracts"
"""The contracts, by the names that they have for each other: `CONTRACTS / "examples/ratings/v1/ratings.proto"`."""
