"""Where everything lies: the one module that knows the folders of this repository."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

DATA = ROOT / "data"
# Finished runs and prepared corpora, ignored by git; COMPANION_CACHE names another folder for them,
# such as one that several checkouts share.
CACHE = Path(os.environ.get("COMPANION_CACHE") or DATA / "cache")
REFERENCE = DATA / "reference"  # the committed results of the default profile
PUBLISHED = DATA / "published"  # tables copied from papers

FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
BUILD = ROOT / "build"  # what this machine made, one folder a profile; ignored by git

PROFILES = ("quick", "default", "full")
GPU = "gpu"  # a profile of its own: other studies, no claims, no notebooks


def results(profile: str) -> Path:
    """The folder that holds a profile's results; "reference" names the committed ones of the
    default profile, "reference of full" those of the full profile.

    Raises ValueError for a profile that does not exist.
    """
    if profile == "reference":
        return REFERENCE
    if profile == "reference of full":
        return REFERENCE / "full"
    if profile in (*PROFILES, GPU):
        return BUILD / profile
    known = ", ".join(("reference", *PROFILES, GPU))
    raise ValueError(f"There is no profile {profile!r}; choose one of: {known}.")
