"""NoPE: no encoding at all. The causal mask is the only source of order.

Source: Haviv et al. 2022 (arXiv 2203.16634); the name is Kazemnejad et al. 2023 (2305.19466).
"""

from lib.encodings.base import Encoding, register
from lib.encodings.temperature import Temperature, multiplied


@register("nope")
class NoPE(Encoding):
    """No door is opened: softmax(QKᵀ/√d) V, under the causal mask of the decoder.

    Args:
        log_length, temperature: let the logits of a query grow with its position, see
            `lib.encodings.temperature`; None: they do not. (Llama 4 has a temperature on its layers
            without rotation.)
    """

    def __init__(
        self,
        d_model,
        n_heads,
        max_length,
        log_length: int | None = None,
        temperature: dict | None = None,
        heads=None,
    ):
        super().__init__(d_model, n_heads, max_length, heads)
        self.temperature = Temperature(log_length, temperature)

    def rotate(self, q, k, q_pos, k_pos, length=None):
        grown = self.temperature(q_pos)
        return (q if grown is None else multiplied(q, grown)), k
