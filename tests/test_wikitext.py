"""WikiText-103 from files of its form, served on this machine: nothing comes from elsewhere."""

import dataclasses
import errno
import hashlib
import http.server
import io
import json
import threading
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import files, paths, texts, wikitext
from lib.training import TrainingConfig
from tests.refusing import refuses

TEXT = {
    "train": " \n = Robert = \n \n the cat <unk> the dog of the house , \n" * 60,
    "valid": " \n the dog \n",
    "test": " \n the bird of the cat \n",
}
WORDS, BPE = "wikitext_words", "wikitext_bpe"


def zipped(members, mode=0o100644):
    """A zip file as bytes, from name → text."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, text, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def whole(kind):
    members = wikitext.KINDS[kind].members
    folder = members["train"].partition("/")[0] + "/"
    return zipped({folder: "", **{members[split]: text for split, text in TEXT.items()}})


def archive_of(raw, kind=WORDS, server="http://127.0.0.1:9/"):
    known = wikitext.KINDS[kind]
    return dataclasses.replace(
        known, url=server + known.name, size=len(raw), sha256=hashlib.sha256(raw).hexdigest()
    )


class Server(http.server.ThreadingHTTPServer):
    """Serves `raw` under any name; `cut`: how many bytes it sends before it hangs up."""

    raw, cut, ranges, asked = b"", None, True, ()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        raw, begin = self.server.raw, 0
        said = self.headers.get("Range")
        self.server.asked = (*self.server.asked, said)
        if said and self.server.ranges:
            begin = int(said.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if said and self.server.ranges else 200)
        self.send_header("Content-Length", str(len(raw) - begin))
        self.end_headers()
        end = len(raw) if self.server.cut is None else begin + self.server.cut
        self.wfile.write(raw[begin:end])
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    served = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{served.server_port}/"
    thread = threading.Thread(target=served.serve_forever, args=(0.02,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.delenv("WIKITEXT", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    wikitext.load.cache_clear()
    yield tmp_path / "cache"
    wikitext.load.cache_clear()


# ---- downloading ---------------------------------------------------------------------------------


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_an_interrupted_download_goes_on_where_it_stopped(server, tmp_path, monkeypatch):
    monkeypatch.setattr(wikitext, "CHUNK", 8)
    server.raw = raw = whole(WORDS)
    archive = archive_of(raw, server=server.url)
    have = [0]
    for _ in range(2):
        server.cut = 240
        refuses(lambda: wikitext.fetched(archive, tmp_path), "same command again", "WIKITEXT")
        have.append((tmp_path / f"{archive.name}.part").stat().st_size)
        assert have[-1] == have[-2] + 240
    server.cut = None
    path = wikitext.fetched(archive, tmp_path)
    assert path.read_bytes() == raw and names(tmp_path) == [archive.name]
    assert server.asked == tuple(f"bytes={n}-" for n in have)
    wikitext.fetched(archive, tmp_path)
    assert len(server.asked) == 3  # it is here, and is not asked for again


def test_a_server_without_ranges_is_asked_from_the_beginning(server, tmp_path):
    server.raw, server.ranges = whole(WORDS), False
    archive = archive_of(server.raw, server=server.url)
    (tmp_path / f"{archive.name}.part").write_bytes(b"half")
    assert wikitext.fetched(archive, tmp_path).read_bytes() == server.raw


@pytest.mark.parametrize("change", ["another", "longer", "part of another"])
def test_another_file_is_refused_and_nothing_of_it_is_kept(server, tmp_path, change):
    raw = whole(WORDS)
    archive = archive_of(raw, server=server.url)
    server.raw = {"another": raw[:-1] + b"x", "longer": raw + 10**6 * b"x"}.get(change, raw)
    if change == "part of another":
        (tmp_path / f"{archive.name}.part").write_bytes(b"no zip")
    refuses(lambda: wikitext.fetched(archive, tmp_path), "SHA-256", "nothing of it")
    assert names(tmp_path) == []
    server.raw = raw
    assert wikitext.fetched(archive, tmp_path).read_bytes() == raw  # and the next try is free of it


def test_a_server_that_is_not_there_is_one_sentence(tmp_path):
    refuses(lambda: wikitext.fetched(archive_of(b"x"), tmp_path), "could not be downloaded")


def test_a_server_that_has_not_got_it_is_one_sentence(server, tmp_path, monkeypatch):
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(404))
    archive = archive_of(b"x", server=server.url)
    refuses(lambda: wikitext.fetched(archive, tmp_path), "could not be downloaded (HTTPError")


class _Full(io.BytesIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_and_what_came_is_kept(server, tmp_path, monkeypatch):
    server.raw = raw = whole(WORDS)
    archive = archive_of(raw, server=server.url)
    part = tmp_path / f"{archive.name}.part"
    part.write_bytes(raw[:100])
    monkeypatch.setattr(wikitext, "open", lambda *a: _Full(), raising=False)
    with pytest.raises(OSError) as error:
        wikitext.fetched(archive, tmp_path)
    assert error.value.errno == errno.ENOSPC and error.value.filename.endswith(archive.name)
    monkeypatch.undo()
    assert part.read_bytes() == raw[:100]
    assert wikitext.fetched(archive, tmp_path).read_bytes() == raw
    assert server.asked[-1] == "bytes=100-"


# ---- a folder that the user names ----------------------------------------------------------------


@pytest.fixture
def given_folder(tmp_path, monkeypatch):
    """put(raw, known): the archive `raw` into the folder WIKITEXT; `known` is the pinned one."""
    folder = tmp_path / "größe a"
    folder.mkdir()
    monkeypatch.setenv("WIKITEXT", str(folder))

    def put(raw, known=None, kind=WORDS):
        (folder / wikitext.KINDS[kind].name).write_bytes(raw)
        known = archive_of(raw if known is None else known, kind)
        monkeypatch.setitem(wikitext.KINDS, kind, known)

    return put


def test_a_folder_without_the_archive_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("WIKITEXT", str(tmp_path))
    refuses(lambda: wikitext.load(WORDS), "wikitext-103-v1.zip", "put it there")


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_truncated_or_another_archive_is_refused(given_folder, cache, keep):
    raw = whole(WORDS)
    given_folder(raw[:keep], known=raw)
    refuses(lambda: wikitext.load(WORDS), "SHA-256")
    assert not cache.exists()


def test_what_is_no_zip_file_is_one_sentence(given_folder, cache):
    given_folder(whole(WORDS)[:-30])  # even where its digest is the known one
    refuses(lambda: wikitext.load(WORDS), "no whole zip file")
    given_folder(b"")
    refuses(lambda: wikitext.load(WORDS), "no whole zip file")


MEMBERS = list(wikitext.KINDS[WORDS].members.values())


@pytest.mark.parametrize(
    "more",
    ["../evil", "wikitext-103/../../evil", "/etc/evil", r"C:\evil", "wikitext-103/x", MEMBERS[0]],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_anything_else_in_it_is_refused(given_folder, tmp_path, more):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in (*MEMBERS, more):
            archive.writestr(name, "x")
    given_folder(made.getvalue())
    before = sorted(tmp_path.rglob("*"))
    refuses(lambda: wikitext.load(WORDS), "does not hold what it should")
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written, inside or outside


def test_an_archive_that_lacks_a_member_is_refused(given_folder):
    given_folder(zipped({name: "x" for name in MEMBERS[:2]}))
    refuses(lambda: wikitext.load(WORDS), "does not hold what it should", MEMBERS[2])


def test_a_member_that_is_a_link_is_refused(given_folder):
    given_folder(zipped({name: "/etc/passwd" for name in MEMBERS}, mode=0o120777))
    refuses(lambda: wikitext.load(WORDS), "no plain file")


def test_an_archive_that_unpacks_to_too_much_is_refused_by_what_it_declares(given_folder):
    raw = bytearray(zipped({name: "x" for name in MEMBERS}))
    at = raw.index(b"PK\x01\x02")  # the directory's entry of the first member
    raw[at + 24 : at + 28] = (2 * 10**9).to_bytes(4, "little")
    given_folder(bytes(raw))
    refuses(lambda: wikitext.load(WORDS), "would unpack to 2,000,000,002 bytes")


def test_no_more_than_was_declared_is_read(given_folder):
    raw = bytearray(zipped({name: 1000 * "word " for name in MEMBERS}))
    at = raw.index(b"PK\x01\x02")
    raw[at + 24 : at + 28] = (10).to_bytes(4, "little")
    given_folder(bytes(raw))
    refuses(lambda: wikitext.load(WORDS), "no whole zip file")  # its checksum is of more


# ---- tokens --------------------------------------------------------------------------------------


def test_words_are_those_of_the_training_set_commonest_first(given_folder, cache):
    given_folder(whole(WORDS))
    text = wikitext.load(WORDS)
    (place,) = cache.glob("wikitext/wikitext_words-*")
    vocabulary = json.loads((place / "vocabulary.json").read_text(encoding="utf-8"))
    assert vocabulary[:2] == ["<eos>", "the"] and text.vocabulary_size == len(vocabulary) == 10
    (test,) = text.documents("test")
    words = [vocabulary[i] for i in test]
    # "bird" is in no training line; the empty line has its end, too
    assert words == ["<eos>", *"the <unk> of the cat <eos>".split()]
    (train,) = text.documents("train")
    assert len(train) == len(TEXT["train"].split()) + TEXT["train"].count("\n")
    assert isinstance(train, np.memmap) and not train.flags.writeable
    refuses(lambda: text.documents("sweep"), "no split 'sweep'")


def test_bpe_gives_the_text_back(given_folder, cache):
    given_folder(whole(BPE), kind=BPE)
    text = wikitext.load(BPE)
    (place,) = cache.glob("wikitext/wikitext_bpe-*")
    tokenizer = wikitext.tokenizers.Tokenizer.from_file(str(place / "vocabulary.json"))
    for split in wikitext.SPLITS:
        (tokens,) = text.documents(split)
        assert tokens.dtype == np.uint16
        assert tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == TEXT[split]


def test_prepared_tokens_are_used_again_without_the_archive(given_folder, monkeypatch):
    given_folder(whole(WORDS))
    first = wikitext.load(WORDS)
    wikitext.load.cache_clear()
    monkeypatch.setenv("WIKITEXT", "/nowhere")
    again = wikitext.load(WORDS)
    assert again.hash == first.hash
    assert np.array_equal(again.documents("train")[0], first.documents("train")[0])


@pytest.mark.parametrize("name", ["train.npy", "vocabulary.json", "about.json"])
@pytest.mark.parametrize("damage", [lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), lambda raw: b""])
def test_damaged_tokens_are_prepared_anew_and_it_is_said(given_folder, cache, capsys, name, damage):
    given_folder(whole(WORDS))
    first = wikitext.load(WORDS)
    wikitext.load.cache_clear()
    (place,) = cache.glob("wikitext/wikitext_words-*")
    path = place / name
    raw = path.read_bytes()
    path.unlink()  # the map of the first holds the old file
    path.write_bytes(damage(raw))
    assert wikitext.load(WORDS).hash == first.hash
    assert "anew" in capsys.readouterr().out
    assert files.sha256(path) == hashlib.sha256(raw).hexdigest()


def test_a_preparation_that_was_cut_short_is_begun_again(given_folder, cache, monkeypatch):
    given_folder(whole(WORDS))
    real = wikitext.write_tokens

    def full(parts, vocabulary, path):
        if path.name == "test.npy":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(parts, vocabulary, path)

    monkeypatch.setattr(wikitext, "write_tokens", full)
    with pytest.raises(OSError, match="No space"):
        wikitext.load(WORDS)
    monkeypatch.undo()
    monkeypatch.setattr(paths, "CACHE", cache)
    (place,) = cache.glob("wikitext/wikitext_words-*")
    assert not (place / "about.json").exists()
    monkeypatch.setenv("WIKITEXT", str(cache.parent / "größe a"))
    raw = (cache.parent / "größe a" / wikitext.KINDS[WORDS].name).read_bytes()
    monkeypatch.setitem(wikitext.KINDS, WORDS, archive_of(raw))
    assert wikitext.load(WORDS).vocabulary_size == 10


@given(
    parts=st.lists(st.lists(st.integers(0, 65_535), max_size=5), max_size=5),
    vocabulary=st.sampled_from([65_536, 65_537]),
)
def test_tokens_written_part_by_part_are_one_array(tmp_path_factory, parts, vocabulary):
    path = tmp_path_factory.getbasetemp() / "tokens.npy"
    wikitext.write_tokens(iter(parts), vocabulary, path)
    tokens = np.load(path, allow_pickle=False)
    assert tokens.tolist() == [token for part in parts for token in part]
    assert tokens.dtype == ("<u2" if vocabulary == 65_536 else "<i4")


# ---- by name -------------------------------------------------------------------------------------


def test_a_text_that_there_is_not_is_one_sentence():
    refuses(lambda: texts.load("ptb"), "no text 'ptb'", "wikitext_words")


def test_a_training_names_the_text_that_it_means():
    assert TrainingConfig("rope", 0, 1e-3, 1024).text == texts.MESSAGES
