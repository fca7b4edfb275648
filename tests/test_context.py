"""From a config.json to a setting: the smallest factor, no new angles, what each server reads."""

import copy
import json
import logging
import math
import shlex
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import refuses
from test_rope_config import CONFIGS, built, config, their_frequencies, theirs, tiny
from transformers import CONFIG_MAPPING, PreTrainedConfig

from lib import context, paths, pictures_config, rope_config
from lib.__main__ import main
from lib.context import advise
from lib.rope_config import describe, read

# Models that a setting exists for, at twice what their files are set for.
SCALABLE = [
    name for name in CONFIGS if name not in ("gemma_3_12b", "gemma_4_e4b", "phi_3_mini_128k")
]  # fmt: skip


def advised(name: str, times: float = 2.0):
    model = read(CONFIGS[name])
    return advise(model, int(times * model.length))


def with_changes(file: dict, changes: dict) -> dict:
    """The file with keys set, as a hand in an editor sets them: of the text model in its part."""
    file = copy.deepcopy(file)
    for key, value in changes.items():
        if key == "text_config":
            file[key] = with_changes(file[key], value)
        else:
            file[key] = value
            if key == "rope_parameters":
                file.pop("rope_scaling", None)
                file.pop("rope_theta", None)
    return file


# ---- the angles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCALABLE)
@pytest.mark.parametrize("times", [1.5, 4.0])
def test_the_longer_text_brings_no_new_angle_and_a_smaller_factor_would(name, times):
    advice = advised(name, times)
    if advice.method == "none":
        pytest.skip("nothing is scaled")
    before = pictures_config.pairs_of(advice.far, advice.trained)
    kind = next(k for k in advice.kinds if k.layers == advice.far.layers)
    after = pictures_config.pairs_of(kind, advice.target)
    slow = advice.trained * before.scaled < 2 * np.pi
    assert slow.any()
    seen, met = advice.trained * before.scaled[slow], advice.target * after.scaled[slow]
    assert (met <= seen * (1 + 1e-9)).all()
    less = dict(kind.scaling) | {"factor": 0.99 * advice.factor}
    less = pictures_config.pairs_of(
        rope_config.replace(kind, scaling=tuple(less.items())), advice.target
    )
    assert (advice.target * less.scaled[slow] > seen * (1 + 1e-9)).any()


@given(st.integers(2, 10**7), st.integers(1, 10**7))
def test_the_factor_is_the_smallest_number_that_reaches_the_target(trained, more):
    target = trained + more
    factor = context._ratio(target, trained)
    assert factor * trained >= target  # what vLLM compares
    assert math.nextafter(factor, 0) * trained < target or factor == target / trained


@pytest.mark.parametrize("ratio", [2.0, 4.0])
def test_the_factor_of_dynamic_ntk_is_the_smallest_without_new_angles(ratio):
    kind = read(CONFIGS["qwen2.5_7b"]).kinds[0]
    L = kind.original
    least = context.least_dynamic(kind, L, int(ratio * L))
    plain, slow = built(kind).frequencies(), None
    for factor, enough in ((1.001 * least, True), (0.99 * least, False)):
        scaling = (("rope_type", "dynamic"), ("factor", factor),
                   ("original_max_position_embeddings", L))  # fmt: skip
        theta = built(rope_config.replace(kind, scaling=scaling)).frequencies(length=ratio * L)
        slow = L * plain < 2 * math.pi
        assert bool((ratio * theta[slow] <= plain[slow] * (1 + 1e-9)).all()) == enough


def test_pairs_that_all_make_a_turn_need_no_scaling():
    advice = advised("gemma_4_e4b")
    assert advice.method == "none" and advice.changes == {"max_position_embeddings": 262144}
    assert "whole turn" in context.report("x", advice)


def test_layers_that_see_a_window_need_no_scaling():
    advice = advised("llama_4_scout")
    assert advice.method == "none" and advice.far is None
    assert "window" in context.report("x", advice)


# ---- Transformers --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["5", "4"])
@pytest.mark.parametrize("name", SCALABLE)
def test_transformers_takes_the_setting_without_a_warning_and_computes_it(name, version, caplog):
    advice = advised(name)
    spelled = context.for_transformers(advice)[version]
    file = with_changes(config(name), spelled)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        theirs(file)
        caplog.clear()  # what the model's own file is warned of comes once
        hf = theirs(file)
        hf.validate_rope()
    finally:
        logger.removeHandler(caplog.handler)
    own = [record.getMessage() for record in caplog.records]
    assert not own or name == "llama_4_scout"  # of its ramp without a width
    assert hf.max_position_embeddings == advice.target
    for kind in advice.kinds:
        if kind.rotated:
            theta, factor = their_frequencies(hf, kind.name, kind.head)
            rope = built(kind)
            np.testing.assert_allclose(rope.frequencies(), theta.double(), rtol=1e-6)
            assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", SCALABLE)
def test_the_changed_file_reads_as_advised_and_asks_for_nothing_more(name):
    advice = advised(name)
    for changes in context.for_transformers(advice).values():
        model = describe(with_changes(config(name), changes))
        for ours, read_again in zip(advice.kinds, model.kinds, strict=True):
            assert rope_config.replace(read_again, original=ours.original) == ours
        assert model.length >= advice.target
        assert advise(model, advice.target).changes == {}


# ---- servers -------------------------------------------------------------------------------------


def vllm_flags(advice) -> tuple[dict, int]:
    words = shlex.split(context.for_vllm(advice))
    assert words[:3] == ["vllm", "serve", "MODEL"]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert set(flags) == {"--hf-overrides", "--max-model-len"}
    return json.loads(flags["--hf-overrides"]), int(flags["--max-model-len"])


def test_the_flag_for_vllm_is_that_of_its_documentation():
    # docs.vllm.ai, "Context Extension", for Qwen3-0.6B and 131072 tokens from 32768
    advice = advise(read(CONFIGS["qwen3_0.6b"]), 131072, trained=32768)
    overrides, length = vllm_flags(advice)
    assert length == 131072
    assert overrides["rope_parameters"] == {
        "factor": 4.0, "original_max_position_embeddings": 32768,
        "rope_theta": 1000000, "rope_type": "yarn",
    }  # fmt: skip


@pytest.mark.parametrize("name", SCALABLE)
def test_vllm_allows_the_length_that_it_is_given(name):
    advice = advised(name, 1.7)
    overrides, length = vllm_flags(advice)
    text = overrides.get("text_config", overrides)
    derived = text["max_position_embeddings"]  # as config/model.py of 0.20.2 does from here on
    rope = text.get("rope_parameters", {})
    nested = any(isinstance(x, dict) for x in rope.values())
    scaling = 1.0
    if "gemma3" not in advice.model.type:
        for one in rope.values() if nested else [rope] if rope else []:
            if one["rope_type"] not in ("su", "longrope", "llama3"):
                scaling = one.get("factor", scaling)
                if one["rope_type"] == "yarn":
                    derived = one["original_max_position_embeddings"]
    assert length == advice.target <= derived * scaling
    for one in rope.values() if nested else [rope] if rope else []:
        assert {"rope_type", "rope_theta"} <= set(one)  # an override replaces all of it


def overridden(hf, overrides: dict):
    """A loaded configuration after --hf-overrides, as config/model.py of vLLM 0.20.2 goes about it:
    plain values and whole dictionaries are set, a nested configuration is updated key by key."""

    def update(target, changes):
        for key, value in changes.items():
            inner = target.get(key) if isinstance(target, dict) else getattr(target, key, None)
            if isinstance(value, dict) and (isinstance(inner, dict) or hasattr(inner, "__dict__")):
                update(inner, value)
            elif isinstance(target, dict):
                target[key] = value
            else:
                setattr(target, key, value)

    hf.update({key: value for key, value in overrides.items() if not isinstance(value, dict)})
    for key, value in overrides.items():
        if isinstance(value, dict) and isinstance(getattr(hf, key, None), PreTrainedConfig):
            update(getattr(hf, key), value)
        elif isinstance(value, dict):
            setattr(hf, key, value)
    return hf.get_text_config()


@pytest.mark.parametrize("name", SCALABLE)
def test_the_override_reaches_the_text_model_that_vllm_serves(name):
    file, advice = config(name), advised(name)
    overrides, _ = vllm_flags(advice)
    text = overridden(CONFIG_MAPPING[file["model_type"]](**file), overrides)
    assert text.max_position_embeddings == advice.target
    for kind in advice.kinds:
        if kind.rotated:
            theta, _ = their_frequencies(text, kind.name, kind.head)
            np.testing.assert_allclose(built(kind).frequencies(), theta.double(), rtol=1e-6)


def ggml_yarn(flags: dict, base: float, d: int):
    """θ' and what cos and sin are multiplied by, as ggml's rope_yarn and llama-context.cpp have it.

    The factor on both is 1/(1 + 0.1 ln s), for which rope_yarn's 1 + 0.1 ln s makes up, times the
    mscale that Transformers has too.
    """
    s, n = float(flags["--rope-scale"]), int(flags["--yarn-orig-ctx"])
    fast = float(flags.get("--yarn-beta-fast", 32))
    slow = float(flags.get("--yarn-beta-slow", 1))

    def dim(turns):
        return d * math.log(n / (turns * 2 * math.pi)) / (2 * math.log(base))

    start, end = max(0, math.floor(dim(fast))), min(d - 1, math.ceil(dim(slow)))
    k = np.arange(d // 2)
    mix = 1 - np.clip((k - start) / max(0.001, end - start), 0, 1)
    theta = base ** (-2 * k / d)
    return theta / s * (1 - mix) + theta * mix, 1 + 0.1 * math.log(s)


@pytest.mark.parametrize("name", ["qwen2.5_7b", "qwen2.5_7b_yarn", "smollm2_135m", "gemma_3_1b"])
def test_llama_cpp_computes_the_advised_frequencies_from_its_flags(name):
    advice = advised(name)
    words = shlex.split(context.for_llama_cpp(advice))
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert flags["--rope-scaling"] == "yarn" and flags["-c"] == str(advice.target)
    kind = next(k for k in advice.kinds if k.layers == advice.far.layers)
    theta, factor = ggml_yarn(flags, kind.base, kind.rotated)
    rope = built(kind)
    np.testing.assert_allclose(rope.frequencies(), theta, rtol=1e-9)
    assert rope.attention_factor == pytest.approx(factor)


def test_the_scale_and_the_freq_scale_of_llama_cpp_are_inverse():
    report = context.report("x", advised("qwen2.5_7b", 4))
    assert "--rope-scale 4 says the same as --rope-freq-scale 0.25" in report


def test_the_factors_of_llama_3_are_no_flag_of_llama_cpp():
    assert context.for_llama_cpp(advised("llama_3.1_8b")) is None


# ---- what was measured ---------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_reference(monkeypatch, tmp_path):
    report = context.report("x", advised("smollm2_135m", 4))
    assert context.paid("yarn", "short")[4.0] in report
    windows = (paths.REFERENCE / "real_model_windows.csv").read_text(encoding="utf-8")
    summary = (paths.REFERENCE / "real_model_summary.csv").read_text(encoding="utf-8")
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    (tmp_path / "real_model_windows.csv").write_text(windows.split("1.1,")[0], encoding="utf-8")
    (tmp_path / "real_model_summary.csv").write_text(
        summary.replace("8.447970057162548", "77.7"), encoding="utf-8"
    )
    assert context.free() == 1.05
    assert "+77.7 %" in context.report("x", advised("smollm2_135m", 4))
    assert advised("smollm2_135m", 1.1).method == "yarn"


def test_a_little_longer_needs_nothing():
    advice = advised("smollm2_135m", 1.15)
    assert advice.method == "none" and advice.changes == {"max_position_embeddings": 9420}
    report = context.report("x", advice)
    assert "change nothing but the limit" in report and "of perplexity" not in report


def test_a_price_lies_between_what_was_measured_or_past_it():
    assert context.price("yarn", 3.0).count("at factor") == 2
    assert context.price("yarn", 4.0).count("at factor") == 1
    assert context.price("yarn", 100.0).startswith("more than")


# ---- refused -------------------------------------------------------------------------------------


def test_what_cannot_be_advised_is_one_sentence():
    model = read(CONFIGS["qwen2.5_7b"])
    refuses(lambda: advise(model, 20000, trained=30000), "30000 is longer than the target 20000")
    refuses(lambda: advise(read(CONFIGS["llama_3.1_8b"]), 10**6, trained=8192), "scaled already")
    refuses(lambda: advised("gemma_3_12b"), "linear")
    refuses(lambda: advised("phi_3_mini_128k"), "longrope", "262144")
    still = describe(tiny(no_rope_layers=[0] * 6))
    refuses(lambda: advise(still, 4096), "nothing to scale")
    dynamic = describe(tiny(rope_scaling={"type": "dynamic", "factor": 2.0}))
    refuses(lambda: advise(dynamic, 4096), "grows with the text")


def test_a_length_that_the_file_is_set_for_needs_no_scaling():
    for name in CONFIGS:
        advice = advise(read(CONFIGS[name]), 8000)
        assert advice.method == "none" and advice.changes == {}
        assert "No scaling needed" in context.report(name, advice)


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.json", "--to", "4096"],
        [str(CONFIGS["qwen2.5_7b"]), "--to", "0"],
        [str(CONFIGS["qwen2.5_7b"]), "--to", "4096", "--from", "8192"],
        [__file__, "--to", "4096"],
    ],
)
def test_the_command_fails_with_one_line(arguments, capsys):
    assert main(["context", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("Error: ") and err.count("\n") == 1


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_answers_without_loading_what_takes_seconds():
    code = f"""
import sys
from lib.__main__ import main
status = main(["context", {str(CONFIGS["qwen2.5_7b"])!r}, "--to", "131072"])
loaded = {{"torch", "numpy", "pandas", "scipy", "matplotlib"}} & set(sys.modules)
sys.exit(f"loaded: {{loaded}}" if loaded else status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--rope-scale 4 --yarn-orig-ctx 32768" in done.stdout


@pytest.mark.parametrize("target", [4096, 131072])
def test_a_picture_is_drawn_of_every_advice(target, tmp_path, capsys):
    picture = tmp_path / "new" / "pairs.png"
    file = str(CONFIGS["qwen2.5_7b"])
    assert main(["context", file, f"--to={target}", f"--picture={picture}"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", CONFIGS)
def test_a_table_has_a_row_for_each_kind(name):
    model = read(CONFIGS[name])
    table = pictures_config.table(model)
    assert len(table) == len(model.kinds)
