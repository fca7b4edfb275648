"""A decoder without encoding that knows every position exactly: its weights are set by hand.

The input is a start token and then any words. A stream has the channels START (1 at the start
token), ONE (1 at every token), PLACE (0 at first) and those of the words.

Layer 1 compares nothing (q = k = 0), so token i attends evenly to the i + 1 tokens up to it, one of
which is the start:

    PLACE_i = M · 1/(i+1)

Each norm divides a stream by its root mean square, which the large PLACE rules. So what stood in
ONE comes out of the next norm as √D · s (i+1)/M, and PLACE as √D · s: the norm turns the fraction
over. Here s = 1/√(1 + 2 ((i+1)/M)²) is 1 but for the square of (i+1)/M.

Layer 2, head h, compares the two, q_i = √d m_h from PLACE and k_j = j + 1 from ONE:

    q_i k_j / √d = m_h (j+1) = m_h (j − i) + m_h (i+1)

The last term is the same for all keys of a query, and the softmax does not see it: these are
ALiBi's weights. In the output layer, the token v of the vocabulary names the position v:

    logit_v = s √D (2 (v+1)(i+1) − (v+1)²) = s √D ((i+1)² − (v − i)²),   largest at v = i

After Kazemnejad et al. 2023 (arXiv 2305.19466), theorems 1 and 2; theirs has an MLP for i.
"""

import torch

from lib.encodings.alibi import slopes
from lib.transformer import Config, Decoder

START, ONE, PLACE, WORDS = 0, 1, 2, 3  # channels; the words take the rest
D, H = 32, 4
N_WORDS = 100


def decoder(length: int, M: float = 1e8) -> Decoder:
    """The decoder in float64, for up to `length` tokens. Tokens 0 … length − 1 name positions,
    `length` is the start token, and N_WORDS words follow."""
    model = Decoder(Config("nope", length + 1 + N_WORDS, D, H, 2, length, 1)).double()
    model.requires_grad_(False)
    first, second = model.blocks
    for block in model.blocks:
        for linear in (block.w_qkv, block.w_o, block.w_down):
            linear.weight.zero_()
    d, eps = D // H, first.norm_attention.eps
    value = 2 * D  # the first row of w_qkv that makes a value
    # The norm makes of START's 1 (2/D + eps)^(−1/2): its stream has two channels of size 1.
    first.w_qkv.weight[value, START] = M * (2 / D + eps) ** 0.5
    first.w_o.weight[PLACE, 0] = 1
    for h, m in enumerate(slopes(H).tolist()):
        second.w_qkv.weight[h * d, PLACE] = m * d**0.5 / D**0.5
        second.w_qkv.weight[D + h * d, ONE] = M / D**0.5
    E = model.embedding.weight.zero_()
    v = torch.arange(length, dtype=torch.float64)
    E[:length, ONE], E[:length, PLACE] = 2 * (v + 1) * M, -((v + 1) ** 2)
    # The decoder multiplies embeddings by √D; each of these has two channels of size 1.
    E[length:, ONE] = D**-0.5
    E[length, START] = D**-0.5
    words = torch.randn(N_WORDS, D - WORDS, generator=torch.Generator().manual_seed(0)).double()
    E[length + 1 :, WORDS:] = words / words.norm(dim=1, keepdim=True) * D**-0.5
    return model


def sentence(length: int, seed: int = 0) -> torch.Tensor:
    """The start token and length − 1 random words: (1, length)."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(N_WORDS, (1, length - 1), generator=generator) + length + 1
    return torch.cat([torch.full((1, 1), length), words], dim=1)
