"""What larger models cost: the formulas against counts, the files that users start from."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib import bounds, parallel, paths
from lib.encodings import ENCODINGS
from lib.training import TrainingConfig, mean_loss

SMALL = TrainingConfig(
    "nope", seed=0, learning_rate=1e-3, tokens=640, train_length=32, batch_tokens=64,
    d_model=64, n_heads=2, n_layers=2, d_ff=96,
)  # fmt: skip


def test_parameters_are_those_of_the_model():
    decoder = SMALL.decoder(bounds.VOCABULARY["messages"])
    assert bounds.parameters(SMALL) == sum(p.numel() for p in decoder.parameters())


def test_operations_are_those_that_torch_counts():
    """Torch counts products of matrices alone, and attention without its mask: twice."""
    decoder = SMALL.decoder(bounds.VOCABULARY["messages"])
    window = torch.zeros(2, SMALL.train_length + 1, dtype=torch.long)
    attention = torch.nn.attention.SDPBackend.MATH  # whose products are counted
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(attention):
        mean_loss(decoder, window).backward()
    tokens = 2 * SMALL.train_length
    causal = 6 * SMALL.n_layers * SMALL.d_model * SMALL.train_length * tokens
    assert bounds.operations(SMALL) * tokens + causal == pytest.approx(
        counter.get_total_flops(), rel=0.01
    )


@pytest.mark.parametrize("size, millions", list(zip(bounds.SIZES, (125, 1000), strict=True)))
def test_the_files_of_large_models_are_what_they_are_called(size, millions):
    config, how = parallel.read(paths.DATA / "large" / f"{size}.toml")
    assert bounds.parameters(config) == pytest.approx(millions * 1e6, rel=0.02)
    assert config.encoding in ENCODINGS and config.d_model % config.n_heads == 0
    assert config.tokens / bounds.parameters(config) == pytest.approx(20, rel=0.02)
    windows = config.batch_tokens // config.train_length
    assert windows % (8 * how["accumulate"]) == 0  # one machine of eight GPUs


def test_a_faster_gpu_takes_less_and_nothing_else_changes():
    one, two = bounds.table(1e15, 0.2), bounds.table(1e15, 0.4)
    assert (two["gpu"] * 2 - one["gpu"]).abs().max() < 1e-6 * one["gpu"].max()
    assert one.drop(columns="gpu").equals(two.drop(columns="gpu"))
    assert (one["operations"] / one["gpu"]).tolist() == pytest.approx([0.2e15] * len(one))
