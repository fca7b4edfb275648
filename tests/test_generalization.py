"""The study of tasks: what counts as matched, what a summary says, and what decides a claim."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import claims, figures, paths, tasks
from lib.claims import entries
from lib.claims.verdicts import HOLDS, REFUTED, UNDECIDED, WORDS
from lib.studies import generalization as study
from lib.transformer import Cache, Config, Decoder

LEDGER = {entry.id: entry for entry in entries.load()}
TINY = {
    "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16, "batch": 16, "steps": 6, "longest": 4,
    "learning_rate": 1e-2, "encoding_rate": 1.0, "instances": 6, "lengths": [4, 6],
}  # fmt: skip


def tiny(encoding="rope", task="copy", seed=0, **sizes):
    return {"task": task, "encoding": encoding, "seed": seed, "sizes": {**TINY, **sizes}}


# ---- matching ------------------------------------------------------------------------------------


@torch.inference_mode()
def generated(decoder, batch, row, positions):
    """What greedy decoding with the cache gives after SEP, up to EOS or the answer's length."""
    tokens = torch.from_numpy(batch.tokens[row])
    first = int(batch.scored[row].argmax())
    where = positions[row] if positions is not None else torch.arange(len(tokens))
    cache, new, answer = Cache(), tokens[None, :first], []
    at = where[:first]
    for _ in range(int(batch.scored[row].sum())):
        token = int(decoder(new, at, cache=cache)[0, -1].argmax())
        answer.append(token)
        at = where[first + len(answer) - 1 : first + len(answer)]
        new = torch.tensor([[token]])
        if token == tasks.EOS:
            break
    return answer


@given(
    st.sampled_from(list(tasks.TASKS)),
    st.sampled_from(study.SURVEY),
    st.sampled_from(["exact", "shifted", "drawn"]),
    st.integers(0, 99),
)
@settings(max_examples=25)
def test_an_answer_is_matched_if_and_only_if_greedy_decoding_gives_it(name, encoding, kind, seed):
    task = tasks.task(name)
    batch = tasks.test_set(task, 5, 5)
    room = 2 * task.tokens(5)
    torch.manual_seed(seed)
    decoder = Decoder(Config(encoding, task.vocabulary, 16, 2, 2, room, 16)).eval()
    decoder.embedding.weight.data *= 3  # decided answers
    positions = study.test_positions(kind, batch, 5, room)
    answers = [generated(decoder, batch, row, positions) for row in range(len(batch.tokens))]
    # An answer is right for the instance whose answer is what the model gives, half of them so.
    for row in range(0, len(answers), 2):
        scored = np.flatnonzero(batch.scored[row])
        batch.tokens[row, scored[: len(answers[row])]] = answers[row]
        batch.scored[row] &= np.arange(batch.tokens.shape[1]) < scored[0] + len(answers[row])
    right = [batch.tokens[r][batch.scored[r]].tolist() == answers[r] for r in range(len(answers))]
    assert all(right[::2])
    assert study.exact_match(decoder, batch, positions).tolist() == right


def test_one_wrong_token_or_a_missed_end_is_no_match():
    class Fixed(torch.nn.Module):
        def forward(self, tokens, positions=None):
            return torch.nn.functional.one_hot(wanted[:, 1:], 20).float()

    batch = tasks.test_set(tasks.task("copy"), 5, 4)
    wanted = torch.from_numpy(batch.tokens.copy())
    answer = np.flatnonzero(batch.scored[0])
    wanted[0, answer[2]] = 19
    wanted[1, answer[-1]] = 19
    wanted[2, answer[0] - 2] = 19  # part of the question
    assert study.exact_match(Fixed(), batch).tolist() == [False, False, True, True]


def test_padding_on_the_right_changes_nothing():
    batch = tasks.training_batch(tasks.task("copy"), 0, 0, 12, 6)
    decoder = study.Learning(tiny()).decoder
    whole = study.exact_match(decoder, batch)
    for row, matched in enumerate(whole):
        end = int((batch.tokens[row] == tasks.EOS).argmax()) + 1
        alone = tasks.Batch(batch.tokens[row : row + 1, :end], batch.scored[row : row + 1, :end])
        assert study.exact_match(decoder, alone)[0] == matched


# ---- positions at test time ----------------------------------------------------------------------


def test_shifted_positions_follow_each_other_and_stay_in_the_room():
    task = tasks.task("addition")
    length = max(study.LENGTHS)
    room = 2 * task.tokens(length)
    batch = tasks.test_set(task, length, 50)
    p = study.test_positions("shifted", batch, length, room)
    assert p.shape == (50, batch.tokens.shape[1] - 1) and (p.diff(dim=1) == 1).all()
    assert p.min() > 0 and p.max() < room and len(p[:, 0].unique()) > 10
    assert study.test_positions("exact", batch, length, room) is None


@pytest.mark.parametrize("encoding", ["t5", "rope", "alibi", "nope", study.RANDOM])
def test_what_depends_on_distances_alone_does_not_notice_a_shift(encoding):
    rows = pd.DataFrame(study.measure(None, None, tiny(encoding, "parity", steps=25)))
    table = rows.pivot(index="length", columns="positions", values="exact_match")
    assert table["exact"].equals(table["shifted"])


def test_every_encoding_is_measured_at_every_length():
    for encoding in study.ENCODINGS:
        rows = pd.DataFrame(study.measure(None, None, tiny(encoding, steps=1)))
        kinds = {"exact", "shifted"} | ({"drawn"} if encoding == study.RANDOM else set())
        assert set(rows["positions"]) == kinds and set(rows["length"]) == {4, 6}
        assert rows["n"].eq(6).all() and rows["exact_match"].between(0, 1).all()


# ---- learning ------------------------------------------------------------------------------------


def test_models_of_one_seed_differ_in_their_encoding_alone():
    learned, rope = (study.Learning(tiny(e)).decoder for e in ("learned", "rope"))
    for name, weight in rope.named_parameters():
        assert torch.equal(weight, learned.get_parameter(name))


def test_the_loss_falls_and_is_that_of_the_answers_alone():
    learning = study.Learning(tiny("learned", steps=60, batch=32))
    expected = learning.decoder.train()
    batch = tasks.training_batch(learning.task, 0, 0, 32, 4)
    logits = expected(torch.from_numpy(batch.tokens[:, :-1])).double().log_softmax(-1)
    losses = [-logits[b, t - 1, batch.tokens[b, t]].item() for b, t in np.argwhere(batch.scored)]
    for _ in range(60):
        learning.step()
    assert learning.losses[0] == pytest.approx(np.mean(losses), rel=1e-5)
    assert np.mean(learning.losses[-5:]) < 0.8 * learning.losses[0]


def test_an_interrupted_run_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setattr(study, "CHECKPOINT_STEPS", 2)
    whole = study.learn(tiny("t5"))
    step, stopped = study.Learning.step, []

    def stops(self):
        if len(self.losses) == 3 and not stopped:
            stopped.append(1)
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(study.Learning, "step", stops)
    with pytest.raises(KeyboardInterrupt):
        study.learn(tiny("t5"))
    assert len(list((tmp_path / "tasks").glob("*.safetensors"))) == 1
    resumed = study.learn(tiny("t5"))
    assert resumed.losses == whole.losses
    for a, b in zip(resumed.decoder.parameters(), whole.decoder.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not list((tmp_path / "tasks").glob("*.safetensors"))


def test_a_damaged_checkpoint_is_begun_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setattr(study, "CHECKPOINT_STEPS", 4)
    monkeypatch.setattr(study.Learning, "save", lambda self, path: path.write_bytes(b"half"))
    (tmp_path / "tasks").mkdir()
    assert study.learn(tiny()).losses == study.learn(tiny()).losses


def test_a_loss_that_is_not_finite_says_what_to_do(monkeypatch):
    monkeypatch.setattr(
        study.Learning, "step", lambda self: self.losses.append(float("nan")) or None
    )
    with pytest.raises(FloatingPointError, match="copy, rope, seed 0 is not finite at step 1: "):
        study.learn(tiny())


# ---- the profiles --------------------------------------------------------------------------------


def test_the_profiles_hold_what_the_claims_need():
    for profile, seeds in (("default", 3), ("full", 3)):
        p = study.PROFILES[profile]
        assert set(p["encodings"]) == set(study.SURVEY) and len(set(p["seeds"])) >= seeds
        assert "copy" in p["drawn"] and set(p["drawn"]) <= set(p["steps"])
    assert set(study.PROFILES["full"]["steps"]) == set(tasks.TASKS)
    assert max(study.LENGTHS) == 3 * study.L and study.L in study.LENGTHS
    for p in study.PROFILES.values():
        assert p["sizes"]["longest"] == study.L
        assert all(tasks.task(t).tokens(3 * study.L) for t in p["steps"])


def test_the_papers_ranks_are_read_as_they_are_printed():
    table = study.published().set_index("encoding")["mrr"]
    assert table.to_dict() == {
        "nope": 0.69, "t5": 0.55, "alibi": 0.50, "rope": 0.33, "sinusoidal": 0.22
    }  # fmt: skip


# ---- summaries -----------------------------------------------------------------------------------


def made(longer, trained=None, seeds=(0, 1, 2), names=("copy", "sorting")):
    """Results with exact match longer[task, encoding] or longer[encoding] past L, a number or one
    for each seed; at the trained lengths 1, or trained[task, encoding]."""
    rows = []
    for task in names:
        for encoding in study.ENCODINGS:
            past = longer.get((task, encoding), longer.get(encoding, 0.5))
            inside = (trained or {}).get((task, encoding), 1.0)
            for i, seed in enumerate(seeds):
                there = past[i] if isinstance(past, tuple) else past
                for length in study.LENGTHS:
                    for kind in ("exact", "shifted", "drawn"):
                        if kind == "drawn" and encoding != study.RANDOM:
                            continue
                        value = inside if length <= study.L else there
                        lost = kind == "shifted" and encoding in ("learned", "sinusoidal")
                        value = 0.0 if lost else value
                        rows.append((task, encoding, seed, kind, length, value, 100))
    return pd.DataFrame(rows, columns=study.COLUMNS)


def test_a_score_is_the_mean_over_lengths_inside_and_past_the_trained():
    results = made({"nope": 0.9, study.RANDOM: 0.25})
    table = study.scores(results).set_index(["task", "encoding", "seed"])
    assert table.loc[("copy", "nope", 1)].to_list() == pytest.approx([1.0, 0.9])
    assert table.loc[("copy", study.RANDOM, 2), "longer"] == pytest.approx(0.25)
    assert len(table) == 2 * len(study.ENCODINGS) * 3


def test_what_is_not_solved_says_nothing_past_the_trained_lengths():
    failing = {("sorting", e): 0.5 for e in study.ENCODINGS} | {("copy", "nope"): 0.94}
    results = made({}, failing)
    assert study.solved_tasks(results) == ["copy"]
    found = study.longer(results)
    assert set(found) == {("copy", e) for e in study.ENCODINGS if e != "nope"}
    assert found["copy", "rope"].to_dict() == {0: 0.5, 1: 0.5, 2: 0.5}
    assert study.longer(pd.DataFrame()) == {}
    assert set(study.reciprocal_ranks(results)["task"]) == {"copy"}


def test_only_the_reference_solving_a_task_does_not_count():
    failing = {("copy", e): 0.5 for e in study.SURVEY}
    assert study.solved_tasks(made({}, failing)) == ["sorting"]


def test_ranks_of_a_known_order():
    results = made({"nope": 0.9, "t5": 0.8, "alibi": 0.7, "rope": 0.2, "sinusoidal": 0.2})
    table = study.mean_reciprocal_rank(results)
    here = table[table["source"] == "here"].set_index("encoding")["mrr"]
    tied = 1 / 4.5
    expected = {"nope": 1, "t5": 1 / 2, "alibi": 1 / 3, "rope": tied, "sinusoidal": tied}
    assert here.to_dict() == pytest.approx(expected)
    theirs = table[table["source"] == study.PAPER].set_index("encoding")
    assert theirs.loc["nope", "mrr"] == 0.69 and (theirs["tasks"] == 10).all()
    counts = table.loc[table["source"] == "here", ["tasks", "solved", "n"]]
    assert (counts == [2, 2, 3]).all(axis=None)


def test_a_shift_is_noticed_where_the_numbers_change():
    table = study.notice(made({})).set_index(["task", "encoding"])["value"]
    assert table["copy"].to_dict() == pytest.approx(
        {e: -1.0 * (e in ("learned", "sinusoidal")) for e in study.ENCODINGS}
    )


@pytest.mark.parametrize("figure", study.FIGURES)
@pytest.mark.parametrize(("seeds", "names"), [((0,), ("copy",)), ((0, 1, 2), tuple(tasks.TASKS))])
def test_every_figure_is_drawn_from_rows_that_drift_can_match(figure, seeds, names):
    frame, draw = study.FIGURES[figure]
    numbers = frame(made({"nope": 0.9}, seeds=seeds, names=names))
    assert list(numbers.columns) == figures.COLUMNS
    assert not numbers.duplicated(["panel", "encoding", "x"]).any()
    drawn = draw(numbers)
    drawn.canvas.draw()
    figures.plt.close(drawn)


# ---- claims --------------------------------------------------------------------------------------


def verdict(id, results, text=None):
    frames = {"generalization": results, "extrapolation": pd.DataFrame() if text is None else text}
    return claims.judged(LEDGER[id], claims.Results("quick", frames))["verdict_here"]


AHEAD = {"nope": (0.8, 0.82, 0.84)}
BEHIND = {e: (0.2, 0.21, 0.22) for e in ("nope", "alibi")}
SPREAD = {"nope": (0.1, 0.9, 0.6)}
FLAT = {e: 0.5 for e in study.ENCODINGS}


@pytest.mark.parametrize(
    ("id", "holds", "refuted"),
    [
        ("NOP-2", {**AHEAD, ("sorting", "nope"): 0.1}, BEHIND),
        ("NOP-3", {**AHEAD, ("sorting", "nope"): 0.1}, {"nope": 0.1}),
        ("OPEN-2", AHEAD, FLAT),
    ],
)
def test_a_result_that_changes_changes_the_verdict(id, holds, refuted):
    found = [verdict(id, made(longer)) for longer in (holds, refuted, SPREAD)]
    assert found == [HOLDS, REFUTED, UNDECIDED]
    assert verdict(id, made(holds, seeds=(0, 1))) == UNDECIDED
    assert verdict(id, pd.DataFrame()) == UNDECIDED


def test_an_encoding_that_has_not_learned_the_task_is_not_held_against_nope():
    """Only sinusoids are ahead of or behind NoPE, and they solve neither task."""
    unsolved = {(task, "sinusoidal"): 0.5 for task in ("copy", "sorting")}
    ahead = {"nope": 0.5, "sinusoidal": 0.9}
    behind = {"nope": 0.5, "sinusoidal": 0.1}
    even = {e: 0.5 for e in study.EXPLICIT}
    assert verdict("NOP-3", made({**even, **behind})) == HOLDS
    assert verdict("NOP-3", made({**even, **behind}, unsolved)) == UNDECIDED
    assert verdict("OPEN-2", made({**even, **ahead})) == HOLDS
    assert verdict("OPEN-2", made({**even, **ahead}, unsolved)) == REFUTED


def text(local, strict, seeds=(0, 1, 2)):
    rows = [
        (e, s, 64, "nonoverlapping", 128, (local if e in ("alibi", "nope") else strict) + 0.1 * s)
        for e in ("alibi", "nope", "rope", "shaw") for s in seeds
    ]  # fmt: skip
    return pd.DataFrame(
        rows, columns=["encoding", "seed", "train_length", "evaluation", "length", "nll"]
    )


def test_tasks_by_position_and_local_text_ask_for_different_encodings():
    explicit = {"rope": 0.9, "alibi": 0.2, "nope": 0.2}
    assert verdict("SEL-1", made(explicit), text(3.0, 3.2)) == HOLDS
    assert verdict("SEL-1", made(AHEAD), text(3.2, 3.0)) == REFUTED
    assert verdict("SEL-1", made(explicit), text(3.2, 3.0)) == "holds_in_part"
    assert verdict("SEL-1", made(explicit)) == verdict("SEL-1", made(AHEAD)) == UNDECIDED
    assert verdict("SEL-1", made(explicit, names=("sorting",)), text(3.0, 3.2)) == UNDECIDED


def test_the_paper_has_nope_first():
    row = claims.judged(LEDGER["NOP-2"], claims.Results("quick", {"generalization": made({})}))
    assert row["verdict_published"] == HOLDS and "0.69 against 0.55" in row["measured"]


@given(st.integers(0, 2**32), st.floats(0, 1))
@settings(max_examples=15)
def test_no_result_is_so_odd_that_a_claim_fails(seed, missing):
    random = np.random.default_rng(seed)
    frame = ODD.assign(exact_match=random.random(len(ODD)))
    frame.loc[frame["length"] <= study.L, "exact_match"] **= 0.05
    frame = frame[random.random(len(frame)) > missing]
    for id in ("NOP-2", "NOP-3", "SEL-1", "OPEN-2"):
        assert verdict(id, frame) in WORDS


ODD = made({})


def test_the_settings_of_a_job_name_everything_that_its_rows_depend_on():
    job = study.jobs("quick")[0]
    assert dataclasses.asdict(job)["settings"]["sizes"].keys() == TINY.keys()
