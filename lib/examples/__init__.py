"""Five encodings from the literature beyond the survey, written as one of your own would be.

Each is one file with one registered class, its derivation and its source at the top:

    kerple   a logarithmic penalty with learned slopes          `bias_by_distance`
    fire     a learned function of distance over position       `bias`
    xpos     RoPE whose turns also shrink with distance         `rotate`
    prope    RoPE without its slowest turns                     `rotate`
    cope     positions that count tokens chosen by content      `bias`, from q and k

Importing this package registers none of them, so that a list of the survey's encodings stays what
it is; `lib.own.load(examples.file("kerple"))` registers one, and `python -m lib compare` tries it.
"""

from pathlib import Path

NAMES = ("kerple", "fire", "xpos", "prope", "cope")


def file(name: str) -> Path:
    """The file that registers the example `name`.

    Raises ValueError for a name that is none of NAMES.
    """
    if name not in NAMES:
        raise ValueError(f"No example is named {name!r}: choose one of {', '.join(NAMES)}.")
    return Path(__file__).parent / f"{name}.py"
