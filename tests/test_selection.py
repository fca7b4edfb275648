"""SEL-2: a scheme that nothing beats anywhere refutes it, and one that is beaten does not."""

import pandas as pd
import pytest

from lib import claims, studies
from lib.claims import entries, selection
from lib.claims.selection import Setting
from lib.claims.verdicts import HOLDS, REFUTED, UNDECIDED
from lib.studies import extrapolation

L = extrapolation.L
MARGINS = next(e for e in entries.load() if e.id == "SEL-2").tolerance


def setting(name, means, margin=0.1, seeds=3, **more):
    """Losses with these means, and almost no spread over seeds."""
    losses = {e: pd.Series([m + 0.001 * s for s in range(seeds)]) for e, m in means.items()}
    # a spread of its own, so that differences have one
    losses = {e: v + 0.0001 * n * v.index**2 for n, (e, v) in enumerate(losses.items())}
    return Setting(name, losses, margin, **more)


def test_a_scheme_is_beaten_where_another_leads_by_more_than_the_margin():
    found = [setting("text", {"rope": 1.0, "alibi": 2.0}), setting("time", {"rope": 1, "alibi": 1})]
    assert selection.beaten(found, "alibi").verdict == HOLDS
    assert selection.beaten(found, "rope").verdict == REFUTED
    assert "ALiBi behind RoPE, text" in selection.beaten(found, "alibi").measured
    close = [setting("text", {"rope": 1.0, "alibi": 1.05})]
    assert selection.beaten(close, "alibi").verdict == REFUTED


def test_too_few_seeds_beat_nobody_unless_it_is_counted():
    for seeds in (1, 2):
        found = [setting("text", {"rope": 1.0, "alibi": 2.0}, seeds=seeds)]
        assert selection.beaten(found, "alibi").verdict == UNDECIDED
    counted = [setting("memory", {"rope": 1.0, "alibi": 2.0}, seeds=1, counted=True)]
    assert selection.beaten(counted, "alibi").verdict == HOLDS


def test_two_schemes_change_places_or_do_not():
    one = setting("at L", {"rope": 1.0, "alibi": 2.0, "t5": 3.0})
    other = setting("at 16 L", {"rope": 2.0, "alibi": 1.0, "t5": 3.0})
    turned = selection._turns("the length read", [(one, other)])
    assert turned.verdict == HOLDS
    assert "RoPE behind ALiBi, at 16 L" in turned.measured
    assert selection._turns("nothing", [(one, one)]).verdict == REFUTED
    assert selection._turns("nothing", []).verdict == UNDECIDED


def losses(at_L, far, seeds=3):
    """Results of the study of extrapolation: the same loss up to L, another at all lengths past."""
    rows = [
        (e, seed, L, "nonoverlapping", n, (at_L if n <= L else far)[e] + 0.01 * seed + 1e-4 * k)
        for k, e in enumerate(at_L)
        for seed in range(seeds)
        for n in extrapolation.LENGTHS[L]
    ]
    columns = ["encoding", "seed", "train_length", "evaluation", "length", "nll"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["nll"] += 1e-5 * frame["seed"] ** 2 * frame["encoding"].str.len()
    return frame


@pytest.mark.parametrize(
    ("at_L", "far", "seeds", "verdict"),
    [
        ({"rope": 1, "alibi": 2, "nope": 3}, {"rope": 3, "alibi": 2, "nope": 4}, 3, HOLDS),
        ({"rope": 1, "alibi": 2, "nope": 3}, {"rope": 3, "alibi": 2, "nope": 4}, 2, UNDECIDED),
        ({"rope": 1, "alibi": 2, "nope": 3}, {"rope": 1, "alibi": 2, "nope": 3}, 3, REFUTED),
    ],
)
def test_results_decide_whether_one_scheme_wins_everywhere(at_L, far, seeds, verdict):
    nothing = dict.fromkeys(studies.STUDIES, pd.DataFrame())
    results = claims.Results("quick", {**nothing, "extrapolation": losses(at_L, far, seeds)})
    parts, published = selection.no_scheme_wins_everywhere(results, **MARGINS)
    assert published == []
    assert parts[0].verdict == verdict
    # With one setting alone left out the order cannot turn with a training length or a fine-tune.
    assert parts[1].verdict == (HOLDS if verdict == HOLDS else UNDECIDED)


def test_standings_ring_the_unbeaten_that_have_enough_seeds():
    many = setting("text", {"rope": 1.0, "alibi": 2.0, "nope": 1.05})
    few = setting("time", {"rope": 1.0, "alibi": 9.0}, seeds=1)
    table = selection.standings([many, few]).set_index(["setting", "scheme"])
    assert table.loc["text", "place"].to_dict() == {"rope": 1, "alibi": 3, "nope": 2}
    assert table.loc["text", "unbeaten"].to_dict() == {"rope": True, "alibi": False, "nope": True}
    assert not table.loc["time", "unbeaten"].any()
