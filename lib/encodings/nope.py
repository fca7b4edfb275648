"""NoPE: no encoding at all. The causal mask is the only source of order.

Source: Haviv et al. 2022 (arXiv 2203.16634); the name is Kazemnejad et al. 2023 (2305.19466).
"""

from lib.encodings.base import Encoding, register


@register("nope")
class NoPE(Encoding):
    """No door is opened: softmax(QKᵀ/√d) V, under the causal mask of the decoder."""
