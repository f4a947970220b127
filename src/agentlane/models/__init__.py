"""Adapters of model providers, each behind an extra of the distribution; ``agentlane.models.names`` finds them by name.

What every adapter keeps to:

- Counts: ``input_tokens`` is everything that was sent, what a cache held and what was written to one included;
  ``cache_read_tokens`` and ``cache_write_tokens`` are the parts of it that were. ``reasoning_tokens`` is a part of
  ``output_tokens``. What the provider did not say is None.
- The cost is None unless the adapter was given prices.
- Every failure is a ``ModelError``, or an answer that ends in one, with a kind of ``agentlane.models.http_errors``.
- Nothing is tried again inside an adapter, and the client of the SDK is told so.
- Opaque marks (signatures, encrypted reasoning) go back verbatim, and only to the model that gave them.
"""
