"""What a model's tokens cost, for adapters that are told."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from agentlane import InvalidDefinition, Usage

COST_NANOS_MAX = 2**53
"""Nine million of the currency: what costs more than that is a count that is none."""


class Prices(Struct, frozen=True, kw_only=True):
    """Prices of a million tokens, in the currency that your costs are in.

    ``cache_read`` and ``cache_write`` are those of input tokens that were read from and written to a cache; without
    them these cost what others do. No provider's prices are known to this library: they change. ``InvalidDefinition``
    for what is no price.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            price: object = getattr(self, name)
            if price is None and name.startswith("cache_"):
                continue
            if type(price) not in (int, float) or not 0 <= price < math.inf:  # type: ignore[operator]
                raise InvalidDefinition(
                    f"{name}={price!r} must be the price of a million tokens, a number of at least 0"
                )

    def priced(self, usage: Usage) -> Usage:
        """``usage`` with its cost in billionths; the same where counts are unknown, or beyond sense."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return usage
        read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        cost = (
            max(usage.input_tokens - read - written, 0) * self.input
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )
        return replace(usage, cost_nanos=round(cost * 1_000)) if cost * 1_000 <= COST_NANOS_MAX else usage
