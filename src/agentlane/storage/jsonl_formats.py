"""The formats of the session file.

1. Every line is a commit's.
2. The file begins with a base.

This version writes both: what was made whole or cleaned up is of the second, everything else of the first. A step to a
later one says only that the layout is another: reading understands every layout that there was, and what an owner finds
of an older one it writes anew (``jsonl_migrate``).
"""

from __future__ import annotations

from agentlane.storage.framing import FORMAT
from agentlane.storage.migrating import Chain, Step

CHAIN: Chain[None] = Chain(newest=FORMAT)


def due(found: int) -> tuple[Step[None], ...]:
    """The steps that a file of format ``found`` has to take; what is older than the chain counts as its oldest."""
    return tuple(CHAIN.due(max(found, CHAIN.oldest)))
