"""The texts that models learn from, by the name that a `TrainingConfig` gives."""

from lib import corpus, wikitext

MESSAGES = "messages"


def load(name: str = MESSAGES):
    """The text of a name: an object with `vocabulary_size`, `hash` (SHA-256 over the tokens and
    their meaning) and `documents(split)`, arrays of tokens.

    "messages" is the corpus inside a package; the rest is `lib.wikitext`, which the gpu profile
    alone asks for, and which may be downloaded. Raises ValueError for another name.
    """
    if name == MESSAGES:
        return corpus.load()
    if name in wikitext.KINDS:
        return wikitext.load(name)
    known = ", ".join((MESSAGES, *wikitext.KINDS))
    raise ValueError(f"There is no text {name!r}: choose one of {known}.")
