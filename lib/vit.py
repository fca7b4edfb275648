"""A small vision transformer: the decoder's blocks with every token in sight of every other.

Tokens come from `lib.images`, positions with them. The mean of the last layer's tokens is
classified, so that there is no class token, and no token without a place on the grid.

Letters: B batch, T tokens, n numbers in a token, D width, C classes.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from lib.training import descend, optimizer_of, set_rates
from lib.transformer import Block, Config, View, encodings_of


class ViT(nn.Module):
    """Tokens (B, T, n) at positions → logits of the classes (B, C).

    Weights are drawn from torch's global generator, the encoding's own parameters last: two models
    of one seed and one size differ in their encodings alone.

    Args:
        config: as of a decoder; its vocabulary are the C classes.
        numbers: n.
    """

    def __init__(self, config: Config, numbers: int):
        super().__init__()
        D = config.d_model
        self.into = nn.Linear(numbers, D)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self.head = nn.Linear(D, config.vocabulary)
        self._initialise()
        self.encodings = encodings_of(config)

    def _initialise(self):
        """As in the decoder: normal weights of variance 1/fan-in, and 1/(2·layers) of it where they
        write to the stream; biases 0."""
        for linear in (m for m in self.modules() if isinstance(m, nn.Linear)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for block in self.blocks:
            for linear in (block.w_o, block.w_down):
                linear.weight.data *= (2 * len(self.blocks)) ** -0.5

    def encoding(self, layer: int):
        """The encoding that serves this layer."""
        return self.encodings[layer if len(self.encodings) > 1 else 0]

    def forward(self, tokens, positions):
        """Positions as the encoding takes them: (T, 2) on a grid, (T,) on a line."""
        T = tokens.shape[1]
        every = torch.ones(T, T, dtype=torch.bool, device=tokens.device)
        view = View(positions, positions, every, {}, None, None, False, None)
        x = self.encoding(0).embed(self.into(tokens), positions)  # (B, T, D)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, self.encoding(layer), view)
        return self.head(self.norm(x).mean(1))


def train(
    model: ViT,
    tokens,
    labels,
    positions,
    *,
    seed: int,
    epochs: int,
    learning_rate: float,
    encoding_rate: float = 1.0,
    batch: int = 64,
    report: Callable[[float], None] = lambda loss: None,
) -> ViT:
    """Train on tokens (N, T, n) with labels (N,), each epoch in an order of its own.

    The model itself comes back.

    AdamW, warm-up and cosine as for the decoder; the encoding's parameters have a group of their
    own, `encoding_rate` times faster and without weight decay. Raises FloatingPointError for a loss
    that is not finite.
    """
    optimizer = optimizer_of(model, learning_rate, encoding_rate)
    generator = torch.Generator().manual_seed(seed)
    a_round = len(tokens) // batch
    for step in range(epochs * a_round):
        if step % a_round == 0:
            order = torch.randperm(len(tokens), generator=generator)
        chosen = order[step % a_round * batch :][:batch]
        set_rates(optimizer, step, epochs * a_round)
        loss = F.cross_entropy(model(tokens[chosen], positions), labels[chosen])
        descend(model, optimizer, loss)
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"The loss is not finite at step {step}: choose a learning rate below "
                f"{learning_rate}."
            )
        report(loss.item())
    return model


@torch.inference_mode()
def accuracy(model: ViT, tokens, labels, positions, batch: int = 128) -> float:
    """The share of pictures whose largest logit is that of their label."""
    right = 0
    for start in range(0, len(tokens), batch):
        chosen = slice(start, start + batch)
        right += (model(tokens[chosen], positions).argmax(-1) == labels[chosen]).sum().item()
    return right / len(tokens)
