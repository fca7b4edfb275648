"""The vision transformer: what it may and may not notice, and that it trains to the same bits."""

import pytest
import torch

from lib import images, vit
from lib.encodings import ENCODINGS
from lib.transformer import Config

GRID, NUMBERS = (3, 4), 4
RELATIVE = ["rope2d_axial", "rope2d_mixed", "alibi2d", "nope"]
ON_A_GRID = [name for name, cls in ENCODINGS.items() if "image" in cls.domain]


def model(encoding, seed=0, **options):
    config = Config(
        encoding=encoding, options=options, vocabulary=5, d_model=16, n_heads=2, n_layers=2,
        max_length=16, d_ff=16,
    )  # fmt: skip
    torch.manual_seed(seed)
    return vit.ViT(config, NUMBERS)


def tokens(n=3, count=12):
    return torch.randn(n, count, NUMBERS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("encoding", [*ON_A_GRID, "nope"])
def test_the_order_of_tokens_means_nothing_and_their_positions_do(encoding):
    net, x, positions = model(encoding).double(), tokens().double(), images.places(GRID)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    expected = net(x, positions)
    torch.testing.assert_close(net(x[:, order], positions[order]), expected)
    if encoding == "nope":
        torch.testing.assert_close(net(x[:, order], positions), expected)
    else:
        assert (net(x[:, order], positions) - expected).abs().max() > 1e-4


@pytest.mark.parametrize("encoding", ON_A_GRID)
def test_a_shift_of_both_axes_is_seen_by_absolute_encodings_alone(encoding):
    net, x = model(encoding).double(), tokens().double()
    here = images.places((3, 3))
    x = x[:, : len(here)]
    moved = net(x, here + 1)
    if encoding in RELATIVE:
        torch.testing.assert_close(moved, net(x, here))
    else:
        assert (moved - net(x, here)).abs().max() > 1e-4


@pytest.mark.parametrize("encoding", ON_A_GRID)
def test_every_token_sees_every_other(encoding):
    net, x, positions = model(encoding), tokens(1), images.places(GRID)
    x.requires_grad_()
    net(x, positions)[0, 0].backward()
    assert (x.grad.abs().sum(-1) > 0).all()
    # Whatever stands first is seen by what stands last, and the other way round.
    seen = (
        torch.autograd.functional.jacobian(
            lambda x: net.blocks[0](x, 0, net.encoding(0), _view(positions)).sum(-1),
            torch.randn(1, 12, 16),
        )[0, :, 0]
        .abs()
        .sum(-1)
    )  # (T, T)
    assert (seen > 0).all()


def _view(positions):
    every = torch.ones(12, 12, dtype=torch.bool)
    return vit.View(positions, positions, every, {}, None, None, False, None)


@pytest.mark.parametrize("encoding", ON_A_GRID)
def test_models_of_one_seed_differ_in_their_encodings_alone(encoding):
    other = dict(model(encoding).named_parameters())
    for name, parameter in model("nope").named_parameters():
        assert torch.equal(parameter, other[name]), name
    layers = 2 if encoding == "rope2d_mixed" else 1
    assert len(model(encoding).encodings) == layers


def problem(n=160, seed=4):
    """Which of two halves of the picture is the brighter: the tokens alone do not tell."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, 6, NUMBERS, generator=generator)
    y = torch.randint(2, (n,), generator=generator)
    x[torch.arange(n), y] += 1.0
    return x.flatten(1, 2), y, images.places(GRID)


RUN = {"seed": 0, "epochs": 10, "learning_rate": 1e-2, "batch": 32}


def test_training_learns_and_repeats_to_the_bit():
    x, y, positions = problem()
    first = vit.train(model("learned2d"), x, y, positions, **RUN)
    net = model("learned2d")
    torch.manual_seed(78)  # what the caller's generator did does not matter
    second = vit.train(net, x, y, positions, **RUN)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    others = problem(seed=5)
    assert vit.accuracy(first, *others) > 0.8
    assert vit.accuracy(vit.train(model("nope"), x, y, positions, **RUN), *others) < 0.6


def test_the_encoding_learns_at_its_own_rate():
    x, y, positions = problem()
    run = {**RUN, "epochs": 1, "learning_rate": 1e-4}
    moved = []
    for rate in (1.0, 10.0):
        net = model("learned2d")
        before = net.encodings[0].table.detach().clone()
        vit.train(net, x, y, positions, encoding_rate=rate, **run)
        moved.append((net.encodings[0].table.detach() - before).abs().mean().item())
    assert moved[1] == pytest.approx(10 * moved[0], rel=0.2)


def test_a_loss_that_is_not_finite_stops_with_a_sentence():
    x, y, positions = problem()
    with pytest.raises(FloatingPointError, match="choose a learning rate below"):
        vit.train(model("nope"), x * float("nan"), y, positions, **RUN)


def test_accuracy_counts_the_last_batch_too():
    x, y, positions = problem(50)
    net = model("rope2d_axial").eval()
    with torch.no_grad():
        expected = (net(x, positions).argmax(-1) == y).float().mean().item()
    assert vit.accuracy(net, x, y, positions, batch=16) == pytest.approx(expected)
