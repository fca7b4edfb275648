"""Small pictures, and how they become tokens on a grid of any height and width.

Handwritten digits of 8 × 8 come with scikit-learn (1797 of them, from the test part of Alpaydin and
Kaynak 1998). Fashion-MNIST (70,000 of 28 × 28; Xiao et al. 2017, arXiv 1708.07747) is read where
Debian's package dataset-fashion-mnist has put it, and nowhere fetched.

A token is a window of the picture about a point, always of the same size in the picture. A grid of
h × w points lies evenly over the picture; a finer one has more points, and its windows overlap. So
the content of a token does not tell how fine the grid is, and its position alone has to.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

FASHION = Path("/usr/share/datasets/fashion-mnist")
SHA256 = {  # of what the files of Fashion-MNIST unpack to, and of the digits' numbers
    "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "digits": "f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443",
}


@dataclass(frozen=True)
class Pictures:
    """Grey pictures (N, side, side), float32 of mean 0 and variance 1 over the training part, and
    their labels (N,)."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    @property
    def side(self) -> int:
        return self.train.shape[-1]

    @property
    def blank(self) -> float:
        """The grey of the empty background: the least there is."""
        return self.train.min().item()


def digits() -> Pictures:
    """The digits of scikit-learn. The last quarter is the test part: pictures of one writer follow
    each other, so that most of its writers are not in training.

    Raises ValueError where scikit-learn's are not the known ones.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    raw = found.images.astype("<f8").tobytes() + found.target.astype("<i8").tobytes()
    _check("digits", raw, "scikit-learn's digits", "reinstall scikit-learn")
    cut = len(found.images) * 3 // 4
    return _pictures(found.images, found.target, cut)


def fashion_mnist(folder: Path = FASHION) -> Pictures:
    """Fashion-MNIST in its own two parts.

    Raises ValueError where its files are not, or are damaged.
    """
    try:
        parts = [
            _idx(folder, f"{part}-{what}")
            for what in ("images-idx3", "labels-idx1")
            for part in ("train", "t10k")
        ]
    except FileNotFoundError:
        raise ValueError(
            f"Fashion-MNIST is not in {folder}: install Debian's package dataset-fashion-mnist."
        ) from None
    pictures, labels = np.concatenate(parts[:2]), np.concatenate(parts[2:])
    return _pictures(pictures, labels, len(parts[0]))


SETS = {"digits": digits, "fashion_mnist": fashion_mnist}


def _check(name: str, raw: bytes, what: str, mend: str) -> None:
    if hashlib.sha256(raw).hexdigest() != SHA256[name]:
        raise ValueError(f"{what} are not the known ones: {mend}.")


def _idx(folder: Path, name: str) -> np.ndarray:
    """The array in a file of the idx format: 0, 0, 8 (bytes), the number of axes, their sizes (four
    bytes each, the highest first), the bytes."""
    path, mend = folder / f"{name}-ubyte.gz", "reinstall Debian's package dataset-fashion-mnist"
    try:
        raw = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raw = b""
    _check(name, raw, f"The pictures of {path.name}", mend)
    axes = raw[3]
    shape = np.frombuffer(raw, ">u4", axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _pictures(pictures, labels, cut: int) -> Pictures:
    grey = torch.tensor(np.asarray(pictures), dtype=torch.float32)
    grey = (grey - grey[:cut].mean()) / grey[:cut].std()
    labels = torch.tensor(np.asarray(labels), dtype=torch.long)
    return Pictures(grey[:cut], labels[:cut], grey[cut:], labels[cut:])


# ---- tokens on a grid ----------------------------------------------------------------------------


def tokens(pictures, grid: tuple[int, int], window: int) -> torch.Tensor:
    """Windows of `window` × `window` pixels about the points of a grid: (N, h·w, window²).

    Row by row. Between pixels the picture is linear, past its edge it is as at the edge. The points
    of a grid of h rows lie at (i + ½) · side/h, in pixels from the upper edge.
    """
    side = pictures.shape[-1]
    across = torch.arange(window) - (window - 1) / 2  # of a window, in pixels about its middle
    rows, columns = (
        ((torch.arange(n)[:, None] + 0.5) * side / n + across).flatten() for n in grid
    )  # (h·window,), (w·window,)
    # grid_sample counts from −1 at one edge of the picture to 1 at the other, columns first.
    where = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], dim=-1)
    where = (where * 2 / side - 1).expand(len(pictures), -1, -1, -1)
    sampled = F.grid_sample(
        pictures[:, None], where, "bilinear", padding_mode="border", align_corners=False
    )
    return F.unfold(sampled, window, stride=window).mT  # (N, h·w, window²)


def places(grid: tuple[int, int]) -> torch.Tensor:
    """The positions (row, column) of a grid, row by row: (h·w, 2)."""
    return torch.cartesian_prod(*(torch.arange(n) for n in grid)).reshape(-1, 2)


def scaled_places(grid: tuple[int, int], trained: tuple[int, int]) -> torch.Tensor:
    """Where the points of `grid` lie in the picture, in steps of the grid `trained`: (h·w, 2).

    Position interpolation on two axes: (row + ½) · h_trained/h − ½. But for a constant, which no
    relative encoding sees, this is row · h_trained/h.
    """
    ratio = torch.tensor(trained, dtype=torch.float64) / torch.tensor(grid, dtype=torch.float64)
    return (places(grid) + 0.5) * ratio - 0.5


def on_canvas(tokens, grid: tuple, canvas: tuple, corner: tuple, blank: float) -> torch.Tensor:
    """Tokens (N, h·w, n) of a grid, laid on a larger one with their upper left at `corner`; all
    around it is `blank`: (N, H·W, n)."""
    laid = tokens.new_full((len(tokens), *canvas, tokens.shape[-1]), blank)
    (r, c), (h, w) = corner, grid
    laid[:, r : r + h, c : c + w] = tokens.unflatten(1, grid)
    return laid.flatten(1, 2)
