"""Digests by which a request, or arguments, are known again."""

from __future__ import annotations


def digest(*pieces: bytes) -> str:
    """The first 128 bits of SHA-256 over the pieces, as 32 hexadecimal digits."""
    import hashlib  # it loads OpenSSL: not for a program that only imports us

    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()[:32]
