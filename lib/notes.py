"""What a notebook says about what it shows: a sentence is printed only next to its own check."""


def seen(condition, sentence):
    """Print `sentence` as seen, or say plainly that this build does not show it.

    condition: a bool or NumPy bool, the check that the sentence rests on.
    sentence: one sentence in the reader's words, without the full build's numbers.
    """
    if getattr(condition, "ndim", 0):
        raise ValueError(
            f"seen() wants one truth value, not {condition.size}: use .all() or .any()."
        )
    print(f"seen: {sentence}" if condition else f"NOT SEEN in this build: {sentence}")
