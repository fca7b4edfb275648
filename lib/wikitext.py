"""WikiText-103 for the gpu profile: 103 million words of Wikipedia (Merity et al. 2017, arXiv
1609.07843; CC BY-SA), as words or as a byte-level BPE.

    wikitext_words   every word of the training set is a token, 267,735 of them, as in the papers;
                     our decoder reads the logits of all of them off its embeddings (one plain
                     softmax, where Press et al. 2022 have the adaptive one of Baevski and Auli)
    wikitext_bpe     16,384 tokens learned on the training set of the raw edition, which has no
                     <unk>; perplexities are a token's, and are not a word's

Each edition is one archive of known SHA-256, from the folder that the variable WIKITEXT names, or
downloaded into data/cache/wikitext; an interrupted download goes on where it stopped. Nothing is
unpacked: three known members are read where they lie. Their tokens are kept beside as .npy files
that are mapped, not read, into memory, and checked by SHA-256 once a process.
"""

import functools
import hashlib
import io
import json
import os
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import tokenizers
from tqdm import tqdm

from lib import corpus, files, paths

SPLITS = ("train", "valid", "test")
LINE_END, UNKNOWN = "<eos>", "<unk>"
BPE_SIZE = 16_384
TOGETHER = 20_000  # lines encoded at once
CHUNK = 1 << 16  # bytes received at once; as many may be lost where a connection ends
LARGEST = 10**9  # bytes of the three members together, unpacked; the real ones have 0.55·10⁹


@dataclass(frozen=True)
class Archive:
    """An edition: `size` and `sha256` are of the zip file at `url`, `members` are its splits."""

    url: str
    size: int
    sha256: str
    members: dict[str, str]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


# The first author's own server. Sizes and SHA-256 as in the metadata of Hugging Face's `datasets`
# (datasets/wikitext/dataset_infos.json), where the files lay at another address; several other
# public loaders have the same digests.
SERVER = "https://wikitext.smerity.com/"
KINDS = {
    "wikitext_words": Archive(
        SERVER + "wikitext-103-v1.zip",
        190_229_076,
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        {split: f"wikitext-103/wiki.{split}.tokens" for split in SPLITS},
    ),
    "wikitext_bpe": Archive(
        SERVER + "wikitext-103-raw-v1.zip",
        191_984_949,
        "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
        {split: f"wikitext-103-raw/wiki.{split}.raw" for split in SPLITS},
    ),
}


@dataclass(frozen=True, eq=False)
class WikiText:
    """One edition as tokens; each split is one long array, mapped from its file."""

    splits: dict[str, np.ndarray]
    vocabulary_size: int
    hash: str  # SHA-256 over the vocabulary and all tokens

    def documents(self, split: str) -> list[np.ndarray]:
        """The tokens of "train", "valid" or "test", in one array as the papers read them."""
        if split not in self.splits:
            raise ValueError(f"There is no split {split!r}: choose one of {', '.join(SPLITS)}.")
        return [self.splits[split]]


@functools.cache
def load(kind: str) -> WikiText:
    """The tokens of an edition, prepared first where they are not yet (some minutes).

    Raises ValueError, with what to do, where the archive cannot be had or is not the known one.
    """
    archive = KINDS[kind]
    place = paths.CACHE / "wikitext" / f"{kind}-{_key(kind, archive)}"
    try:
        return _read(place)
    except FileNotFoundError:
        pass
    except ValueError as damage:
        print(f"{damage} Preparing {kind} anew.", flush=True)
    with _opened(archive) as source:
        _prepare(kind, source, place)
    return _read(place)


def _key(kind: str, archive: Archive) -> str:
    """What prepared tokens depend on: the archive, this file, and the tokenizer's library."""
    recipe = Path(__file__).read_bytes() + tokenizers.__version__.encode() + kind.encode()
    return hashlib.sha256(recipe + archive.sha256.encode()).hexdigest()[:16]


# ---- the archive ---------------------------------------------------------------------------------


@contextmanager
def _opened(archive: Archive):
    """split → a function that opens its text as bytes, from the checked archive."""
    path = found(archive)
    try:
        with zipfile.ZipFile(path) as stored:
            check_members(stored, archive)
            yield lambda split: stored.open(archive.members[split])
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as damage:
        raise ValueError(f"{path} is no whole zip file ({damage}): remove it.") from None


def found(archive: Archive) -> Path:
    """The archive, in the folder that WIKITEXT names or downloaded, with the known SHA-256.

    Raises ValueError where it is not there, cannot be had, or is another file.
    """
    folder = os.environ.get("WIKITEXT", "").strip()
    if not folder:
        return fetched(archive, paths.CACHE / "wikitext")
    path = Path(folder).expanduser() / archive.name
    if not path.is_file():
        raise ValueError(f"WIKITEXT={folder} has no {archive.name}: put it there.")
    if files.sha256(path) != archive.sha256:
        raise ValueError(f"{path} is not the known {archive.name} (its SHA-256 differs).")
    return path


def fetched(archive: Archive, folder: Path) -> Path:
    """The archive, downloaded into `folder` unless it is there already.

    Raises ValueError where the server cannot be reached, ends early or sends another file, and
    OSError where the disk is full.
    """
    import pooch  # not above: the other profiles fetch nothing
    import requests

    pooch.get_logger().setLevel("WARNING")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        digest, download = f"sha256:{archive.sha256}", _Resuming(archive)
        path = pooch.retrieve(archive.url, digest, archive.name, folder, downloader=download)
    except requests.RequestException as error:
        kept = _part(folder, archive)
        have = kept.stat().st_size if kept.exists() else 0
        raise ValueError(
            f"{archive.url} could not be downloaded ({type(error).__name__}; {have:,} of "
            f"{archive.size:,} bytes are here): run the same command again, which goes on from "
            f"there, or put {archive.name} into a folder and name that with WIKITEXT."
        ) from None
    except ValueError:  # pooch's, of the digest; it has removed what came
        raise ValueError(
            f"{archive.url} is not the known {archive.name} (its SHA-256 differs); nothing of it "
            f"is kept."
        ) from None
    except OSError as error:
        error.filename = error.filename or str(folder / archive.name)  # a full disk says no name
        raise
    return Path(path)


def _part(folder: Path, archive: Archive) -> Path:
    return folder / f"{archive.name}.part"


class _Resuming:
    """A downloader for pooch, whose own begins anew each time: what has come is kept in a file
    beside, and the next call asks for the rest. The digest of the whole decides."""

    def __init__(self, archive: Archive):
        self.archive = archive

    def __call__(self, url: str, output_file: str, pooch) -> None:
        import requests

        part = _part(Path(output_file).parent, self.archive)
        have = part.stat().st_size if part.exists() else 0
        if have < self.archive.size:
            # "identity": a range of compressed bytes would be another range.
            headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
            with requests.get(url, headers=headers, stream=True, timeout=30) as response:
                response.raise_for_status()
                if response.status_code != 206:  # the server knows no ranges: from the beginning
                    have = 0
                self._receive(response, part, have)
        os.replace(part, output_file)

    def _receive(self, response, part: Path, have: int) -> None:
        import requests

        size = self.archive.size
        bar = tqdm(total=size, initial=have, desc=self.archive.name, unit="B", unit_scale=True)
        with bar, open(part, "r+b" if have else "wb") as file:
            file.seek(have)
            for chunk in response.iter_content(CHUNK):
                have += len(chunk)
                if have > size:  # whatever it is, it is not the archive; the digest will say so
                    break
                file.write(chunk)
                bar.update(len(chunk))
        if have < size:
            raise requests.ConnectionError("the server ended early")


def check_members(stored: zipfile.ZipFile, archive: Archive) -> None:
    """Raises ValueError unless the archive holds the known members as plain files, and nothing
    else but their folder; and when they would unpack to more than LARGEST bytes."""
    expected = set(archive.members.values())
    folders = {name.rpartition("/")[0] + "/" for name in expected}
    infos = stored.infolist()
    names = [info.filename for info in infos if info.filename not in folders]
    if sorted(names) != sorted(expected):
        strange = sorted(set(names) ^ expected) or sorted(names)
        raise ValueError(f"{archive.name} does not hold what it should: see {strange[0]!r} in it.")
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.filename in expected and kind not in (0, stat.S_IFREG):
            raise ValueError(f"{info.filename} in {archive.name} is no plain file.")
    unpacked = sum(info.file_size for info in infos)
    if unpacked > LARGEST:
        raise ValueError(
            f"{archive.name} would unpack to {unpacked:,} bytes, more than {LARGEST:,}."
        )


# ---- tokens --------------------------------------------------------------------------------------


def _prepare(kind: str, source, place: Path) -> None:
    """Encode the splits of `source` into `place`: <split>.npy, vocabulary.json, and about.json,
    which has their digests and is written last."""
    learn = {"wikitext_words": words, "wikitext_bpe": bpe}[kind]
    encode, vocabulary, size = learn(lines(source("train")))
    files.write_text(vocabulary, place / "vocabulary.json")
    for split in SPLITS:
        write_tokens(map(encode, batches(lines(source(split)))), size, place / f"{split}.npy")
    names = ("vocabulary.json", *(f"{split}.npy" for split in SPLITS))
    digests = {name: files.sha256(place / name) for name in names}
    files.write_sealed({"vocabulary_size": size, "files": digests}, place / "about.json")


def _read(place: Path) -> WikiText:
    """What `_prepare` wrote; raises ValueError when one of the files is damaged."""
    about = files.read_sealed(place / "about.json")
    for name, digest in about["files"].items():
        if not (place / name).exists() or files.sha256(place / name) != digest:
            raise ValueError(f"{place / name} is missing or damaged.")
    splits = {s: np.load(place / f"{s}.npy", mmap_mode="r", allow_pickle=False) for s in SPLITS}
    digest = hashlib.sha256(json.dumps(about["files"], sort_keys=True).encode()).hexdigest()
    return WikiText(splits, about["vocabulary_size"], digest)


def lines(stream) -> Iterator[str]:
    """The lines of a stream of UTF-8, with their ends. Only "\\n" ends one."""
    with io.TextIOWrapper(stream, encoding="utf-8", newline="\n") as text:
        yield from text


def batches(lines: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(lines, TOGETHER)):
        yield batch


def words(training: Iterator[str]):
    """(encode, the vocabulary as JSON, its size): each word is a token, the commonest first.

    An end of line is the word <eos>, of an empty line too, as in the papers' counts. A word that
    the training set lacks is <unk>, which the edition itself has put for rare ones.
    """
    counts = Counter()
    for line in training:
        counts.update(line.split())
        counts[LINE_END] += 1
    counts.setdefault(UNKNOWN, 0)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: n for n, word in enumerate(order)}
    unknown, end = number[UNKNOWN], number[LINE_END]

    def encode(batch: list[str]) -> list[int]:
        ids = []
        for line in batch:
            ids += [number.get(word, unknown) for word in line.split()]
            ids.append(end)
        return ids

    return encode, json.dumps(order, ensure_ascii=False), len(order)


def bpe(training: Iterator[str], size: int = BPE_SIZE):
    """(encode, the tokenizer as JSON, its size): byte-level BPE, line ends among the text."""
    tokenizer = corpus.train_tokenizer(training, size)
    tokenizer.encode_special_tokens = True  # "<|endoftext|>" in a text is text

    def encode(batch: list[str]) -> list[int]:
        return [token for e in tokenizer.encode_batch(batch) for token in e.ids]

    return encode, tokenizer.to_str(), tokenizer.get_vocab_size()


def write_tokens(parts: Iterator[list[int]], vocabulary: int, path: Path) -> None:
    """Tokens, part by part, as a .npy file of one array.

    Written, not mapped: where the disk is full, writing says so and a map kills the process.
    """
    dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<i4")
    with files.atomic(path) as temporary, open(temporary, "r+b") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (10**15,)}
        np.lib.format.write_array_header_1_0(file, header)
        begin, n = file.tell(), 0
        for part in parts:
            file.write(np.array(part, dtype).tobytes())
            n += len(part)
        file.seek(0)  # the true length, in the room that a longer one has left
        header["shape"] = (n,)
        np.lib.format.write_array_header_1_0(file, header)
        if file.tell() != begin:
            raise RuntimeError("numpy's header has another length: report this as an error.")
