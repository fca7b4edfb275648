"""Pictures and their tokens, against scipy's interpolation and torch's."""

import gzip
import hashlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from scipy.ndimage import map_coordinates

from lib import images

SIDE = st.integers(1, 9)


def some(n=2, side=8):
    return torch.randn(n, side, side, generator=torch.Generator().manual_seed(0))


def test_digits_are_scikit_learns_in_two_parts():
    from sklearn.datasets import load_digits

    found, p = load_digits(), images.digits()
    assert p.side == 8 and len(p.train) == 1347 and len(p.test) == 450
    assert torch.equal(p.train_labels, torch.tensor(found.target[:1347]))
    assert torch.equal(p.test_labels, torch.tensor(found.target[1347:]))
    assert p.train.mean().abs() < 1e-5 and (p.train.std() - 1).abs() < 1e-5
    grey = found.images[1347:]
    scale = (p.test.max() - p.test.min()) / (grey.max() - grey.min())
    torch.testing.assert_close(p.test, (torch.tensor(grey).float() - 0.0) * scale + p.blank)
    # No picture of one part is in the other.
    rows = [{x.numpy().tobytes() for x in part} for part in (p.train, p.test)]
    assert not rows[0] & rows[1]


@given(h=SIDE, w=SIDE, window=st.integers(1, 3))
@settings(max_examples=25)
def test_a_token_is_a_window_about_its_point(h, w, window):
    pictures = some(side=7)
    found = images.tokens(pictures, (h, w), window).numpy()
    assert found.shape == (2, h * w, window * window)
    for i, (row, column) in enumerate(np.ndindex(h, w)):
        # Pixel p covers p … p + 1: its middle, which scipy calls p, is at p + ½.
        y, x = (row + 0.5) * 7 / h - 0.5, (column + 0.5) * 7 / w - 0.5
        across = np.arange(window) - (window - 1) / 2
        where = np.meshgrid(y + across, x + across, indexing="ij")
        for picture, tokens in zip(pictures.numpy(), found, strict=True):
            expected = map_coordinates(picture.astype(float), where, order=1, mode="nearest")
            np.testing.assert_allclose(tokens[i], expected.ravel(), atol=1e-5)


def test_a_grid_of_single_pixels_is_the_picture():
    assert torch.allclose(images.tokens(some(), (8, 8), 1)[..., 0], some().flatten(1), atol=1e-6)
    halves = images.tokens(some(), (4, 4), 2)
    assert torch.allclose(halves, F.unfold(some()[:, None], 2, stride=2).mT, atol=1e-6)


@given(h=SIDE, w=SIDE)
def test_places_go_row_by_row(h, w):
    assert images.places((h, w)).tolist() == [list(place) for place in np.ndindex(h, w)]


@given(h=SIDE, w=SIDE)
def test_scaled_places_are_where_a_larger_table_is_read(h, w):
    # Row numbers, resampled as torch resamples pictures, give the places (held at the edges there).
    rows = torch.arange(6.0, dtype=torch.float64)[None, None, :, None].expand(1, 1, 6, 6)
    expected = F.interpolate(rows, size=(h, w), mode="bilinear", align_corners=False).flatten()
    found = images.scaled_places((h, w), (6, 6))
    torch.testing.assert_close(found[:, 0].clamp(0, 5), expected)
    torch.testing.assert_close(images.scaled_places((h, w), (h, w)), images.places((h, w)).double())
    # Differences are those of plain interpolation, position · trained / new.
    plain = images.places((h, w)) * torch.tensor([6 / h, 6 / w], dtype=torch.float64)
    torch.testing.assert_close(found - found[0], plain)


def test_a_canvas_is_empty_around_the_picture():
    tokens = images.tokens(some(), (2, 3), 2)
    laid = images.on_canvas(tokens, (2, 3), (4, 5), (1, 2), -7.0).unflatten(1, (4, 5))
    assert torch.equal(laid[:, 1:3, 2:5].flatten(1, 2), tokens)
    assert (laid == -7.0).sum() == 2 * (4 * 5 - 2 * 3) * 4


def write_idx(path, array):
    """Write a file of the idx format; the SHA-256 of what it unpacks to."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))
    return hashlib.sha256(header + array.tobytes()).hexdigest()


def test_fashion_is_read_where_it_is(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    parts = {"train": 7, "t10k": 3}
    pictures = {p: random.integers(0, 256, (n, 28, 28), np.uint8) for p, n in parts.items()}
    labels = {p: random.integers(0, 10, n).astype(np.uint8) for p, n in parts.items()}
    refuses(lambda: images.fashion_mnist(tmp_path), "dataset-fashion-mnist")
    for p in parts:
        for what, array in {"images-idx3": pictures[p], "labels-idx1": labels[p]}.items():
            digest = write_idx(tmp_path / f"{p}-{what}-ubyte.gz", array)
            monkeypatch.setitem(images.SHA256, f"{p}-{what}", digest)
    found = images.fashion_mnist(tmp_path)
    assert found.train.shape == (7, 28, 28) and found.test_labels.tolist() == list(labels["t10k"])
    train = pictures["train"].astype(np.float64)
    expected = (pictures["t10k"] - train.mean()) / train.std(ddof=1)
    np.testing.assert_allclose(found.test.numpy(), expected, atol=1e-5)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    raw = path.read_bytes()
    for damaged in (gzip.compress(b"other"), raw[:-9], b""):
        path.write_bytes(damaged)
        refuses(lambda: images.fashion_mnist(tmp_path), path.name, "reinstall")


def test_other_digits_are_refused(monkeypatch):
    monkeypatch.setitem(images.SHA256, "digits", "0" * 64)
    refuses(images.digits, "scikit-learn")


@pytest.mark.skipif(not images.FASHION.exists(), reason="Fashion-MNIST is not on this machine")
def test_fashion_as_packaged():
    p = images.fashion_mnist()
    assert (len(p.train), len(p.test), p.side) == (60_000, 10_000, 28)
