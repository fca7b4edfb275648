"""KERPLE: a penalty that grows ever more slowly with distance, with learned slopes.

A kernel k(m, n) is conditionally positive definite where Σ_mn c_m c_n k(m, n) ≥ 0 for all c that
sum to 0. Such a kernel plus a large enough constant is positive definite, and the softmax does not
see the constant. Two families of a distance |m − n| have the property for all r₁, r₂ > 0:

    a_mn = q_m · k_n / √d − r₁ log(1 + r₂ |m − n|)                           ("log")
    a_mn = q_m · k_n / √d − r₁ |m − n|^r₂,   r₂ ≤ 2                          ("power")

ALiBi is the second with r₂ = 1 and r₁ fixed. Each head of each layer learns its own r₁ and r₂.
Source: Chi, Fan, Ramadge, Rudnicky 2022 (arXiv 2205.09921), section 3 (the kernels) and section 4
(the two variants). The authors' code holds r₁ and r₂ above 0 by cutting them off at 0.01; here they
are a softplus of what is learned, r₂ of the power twice a sigmoid, so that no gradient is cut off.
They begin as there: r₁ uniform in (0, 2), r₂ in (0, 1).
"""

import torch
import torch.nn.functional as F
from torch import nn

from lib.encodings.base import Encoding, register

KERNELS = ("log", "power")
LEAST = 1e-2  # where the authors cut off, and the least that r₁ and r₂ begin at


@register("kerple")
class Kerple(Encoding):
    """Subtracts r₁ log(1 + r₂ |δ|), or r₁ |δ|^r₂, from the logits; two parameters a head.

    Args:
        kernel: "log" (the one that the paper recommends) or "power".

    Raises:
        ValueError: another kernel.
    """

    shared_across_layers = False

    def __init__(self, d_model, n_heads, max_length, kernel: str = "log", heads=None):
        super().__init__(d_model, n_heads, max_length, heads)
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, not {kernel!r}.")
        self.kernel = kernel
        r_1, r_2 = LEAST + (1 - LEAST) * torch.rand(2, len(self.heads))  # (H,) each
        self.rho_1 = nn.Parameter(torch.log(torch.expm1(2 * r_1)))  # softplus⁻¹
        self.rho_2 = nn.Parameter(
            torch.log(torch.expm1(r_2)) if kernel == "log" else torch.logit(r_2 / 2)
        )

    def bias_by_distance(self, delta):
        """For distances δ = i − j (n,): float64 (H, n)."""
        r_1, rho_2 = F.softplus(self.rho_1.double())[:, None], self.rho_2.double()[:, None]
        delta = delta.abs().double()
        if self.kernel == "log":
            return -r_1 * torch.log1p(F.softplus(rho_2) * delta)
        return -r_1 * delta ** (2 * rho_2.sigmoid())
