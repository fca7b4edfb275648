"""A trained RoPE model with other frequencies: read as it is, or trained on for a while.

RoPE has no parameters, so a scaling is another encoding around the same weights.
"""

import copy
import dataclasses
import math

from lib import corpus
from lib.training import Training, TrainingConfig
from lib.transformer import Decoder, encodings_of


def rescaled(decoder: Decoder, options: dict) -> Decoder:
    """A copy of `decoder` whose RoPE is built with `options` (base, scaling, …) instead.

    Raises ValueError for a model of another encoding, and as `build` does.
    """
    c = decoder.config
    if c.encoding != "rope":
        raise ValueError(f"Scalings are RoPE's: give a model with rope, not {c.encoding}.")
    other = copy.deepcopy(decoder)
    other.config = dataclasses.replace(c, options=options)
    other.encodings = encodings_of(other.config)
    return other


def fine_tuned(
    decoder: Decoder, training: TrainingConfig, options: dict, length: int, steps: int,
    batch_tokens: int, rate: float,
) -> Decoder:  # fmt: skip
    """`rescaled`, and trained on for `steps` on windows of `length` tokens of the training text.

    rate: the peak learning rate as a share of the first training's. Warm-up, decay, optimizer and
    seed are those of `lib.training`; the optimizer begins without moments. 0 steps train nothing.
    """
    other = rescaled(decoder, options)
    if steps == 0:
        return other
    config = dataclasses.replace(
        training,
        options=options,
        train_length=length,
        batch_tokens=batch_tokens,
        tokens=steps * batch_tokens,
        learning_rate=training.learning_rate * rate,
    )
    text = corpus.load()
    run = Training(config, text.documents("train"), text.vocabulary_size)
    run.decoder.load_state_dict(decoder.state_dict())
    for _ in range(steps):
        run.step()
    other.load_state_dict(run.decoder.state_dict())
    return other


def beta_for(length: int) -> float:
    """β_fast for a model trained on windows of `length`, where 32 is for LLaMA's 4096.

    No pair of a model of 64 tokens turns 32 times: the fastest turns length/2π times. This is the
    number of turns that lies at the same share of the way from 1 to the fastest, in logarithms.
    """
    return (length / (2 * math.pi)) ** (math.log(32) / math.log(4096 / (2 * math.pi)))
