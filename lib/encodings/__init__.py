"""Every positional encoding of the survey, behind one interface (see `lib.encodings.base`).

    from lib.encodings import ENCODINGS, build
    rope = build("rope", d_model=512, n_heads=8, max_length=2048)
    q, k = rope.rotate(q, k, positions, positions)

This package is pure mathematics: it imports torch and nothing else of the project.
"""

from lib.encodings.base import ENCODINGS, Encoding, build, register

# In the order of the story, which is then the order of ENCODINGS.
# isort: off
from lib.encodings import sinusoidal  # noqa: F401
from lib.encodings import learned  # noqa: F401
from lib.encodings import shaw  # noqa: F401
from lib.encodings import t5  # noqa: F401
from lib.encodings import rope  # noqa: F401
from lib.encodings import alibi  # noqa: F401
from lib.encodings import nope  # noqa: F401
from lib.encodings import mrope  # noqa: F401
from lib.encodings import grid  # noqa: F401
from lib.encodings import rope2d  # noqa: F401
from lib.encodings import alibi2d  # noqa: F401
# isort: on

__all__ = ["ENCODINGS", "Encoding", "build", "register"]
