"""Every positional encoding of the survey, behind one interface (see `lib.encodings.base`).

    from lib.encodings import ENCODINGS, build
    rope = build("rope", d_model=512, n_heads=8, max_length=2048)
    q, k = rope.rotate(q, k, positions, positions)

This package is pure mathematics: it imports torch and nothing else of the project.
"""

from lib.encodings import alibi, learned, nope, rope, shaw, sinusoidal, t5  # noqa: F401 (register)
from lib.encodings.base import ENCODINGS, Encoding, build, register

__all__ = ["ENCODINGS", "Encoding", "build", "register"]
