"""The cache of a model that computes nothing: it counts tokens.

Knows nothing of what the tokens are.
"""

from __future__ import annotations

from models import Cache


class CountingCache:
    """Only its length is true."""

    num_bytes = 0

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0

    def rollback(self, length: int) -> None:
        """Forget the tokens at and beyond `length`."""
        self.length = length


def own_cache(cache: Cache) -> CountingCache:
    """The same cache, which must be one of these.

    Raises:
        ValueError: if it is another model's.
    """
    if not isinstance(cache, CountingCache):
        raise ValueError(f"cache must come from this model's new_cache, not be a {type(cache).__name__}")
    return cache
