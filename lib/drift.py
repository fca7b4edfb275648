"""How far a fresh build lies from the reference: figures in standard deviations, verdicts by name.

Pure functions of tidy frames (`panel, encoding, x, value, sd, low, high, n`); nothing is read here.
"""

import numpy as np
import pandas as pd

KEY = ["panel", "encoding", "x"]


def drift(built, reference):
    """Each row's drift, in the reference's standard deviations over seeds.

    built, reference: tidy frames of one figure. Rows are matched by panel, encoding and x (numbers
    to 6 significant digits, so that a frame read from its CSV matches). For a row,

        drift = |value − value_reference| / sd,   sd² = mean over encodings of the reference's sd²

    over the encodings at the same panel and x; if none of them has a spread, over the whole panel.
    Returns a frame indexed by panel, encoding and x, the reference's rows first, with the columns
    `value, value_reference, sd, drift`, in_built and in_reference. drift is 0 where the values are
    equal, and else NaN where no spread is known, a value is NaN or a side lacks the row.
    Raises ValueError when panel, encoding and x do not name a row.
    """
    built, reference = _keyed(built, "built"), _keyed(reference, "reference")
    index = reference.index.append(built.index.difference(reference.index, sort=False))
    panel, x = reference.index.get_level_values("panel"), reference.index.get_level_values("x")
    across, around = _pooled(reference["sd"], [panel, x]), _pooled(reference["sd"], panel)
    rows = pd.DataFrame(
        {
            "value": built["value"].reindex(index),
            "value_reference": reference["value"].reindex(index),
            "sd": [across.get((p, x), around.get(p, np.nan)) for p, _, x in index],
            "in_built": index.isin(built.index),
            "in_reference": index.isin(reference.index),
        }
    )
    with np.errstate(invalid="ignore"):  # inf − inf
        rows["drift"] = (rows["value"] - rows["value_reference"]).abs() / rows["sd"]
    both_nan = rows["value"].isna() & rows["value_reference"].isna()
    equal = (rows["value"] == rows["value_reference"]) | both_nan
    rows.loc[equal & rows["in_built"] & rows["in_reference"], "drift"] = 0.0
    return rows


def report(built, reference, verdicts_built, verdicts_reference, timings=()):
    """What changed from the reference to this build, as lines to print.

    built, reference: {figure name: tidy frame}. verdicts_*: {claim id: verdict}. timings: names of
    figures that show one machine's times, which no other can be held to. For each figure one line
    with its largest drift, or why it has none, and one line for each row that only one side has;
    then each verdict that changed, as `id: holds → undecided`; the last line is a summary.
    """
    lines, largest, alone = [], (0.0, None), 0
    shared = [name for name in reference if name in built]
    for name in shared:
        rows = drift(built[name], reference[name])
        sentence, most = _figure(rows[rows["in_built"] & rows["in_reference"]])
        missing = _missing(rows)
        lines += [f"{name}: {part}" for part in (sentence, *missing)]
        largest = max(largest, (most, name), key=lambda pair: pair[0])
        alone += len(missing)
    lines += [f"{name}: not drawn in this build." for name in reference if name not in built]
    lines += [f"{name}: not in the reference." for name in built if name not in reference]
    lines += [f"{name}: not compared, it shows times of one machine." for name in timings]
    changed, claims = _verdicts(verdicts_built, verdicts_reference)
    summary = [
        f"{_count(len(shared), 'figure')} compared"
        + (f", {len(timings)} of times not" if timings else ""),
        f"largest drift {largest[0]:.3g} sd in {largest[1]}" if largest[1] else "no drift",
        f"on one side only {_count(len(set(built) ^ set(reference)), 'figure')} and "
        f"{_count(alone, 'row')}",
        f"{len(changed)} of {_count(claims, 'verdict')} changed",
    ]
    return [*lines, *changed, "; ".join(summary) + "."]


def _keyed(frame, side):
    """The frame's `value` and `sd`, indexed by the names of its panel, encoding and x."""
    absent = {*KEY, "value", "sd"} - set(frame.columns)
    if absent:
        raise ValueError(f"The {side} figure has no column {', '.join(sorted(absent))}.")
    index = pd.MultiIndex.from_arrays([frame[column].map(_name) for column in KEY], names=KEY)
    if index.has_duplicates:
        row = _where(index[index.duplicated()][0])
        raise ValueError(f"The {side} figure has two rows at {row}: name each row once.")
    return frame[["value", "sd"]].astype(float).set_index(index)


def _name(value):
    if pd.isna(value):
        return ""
    return f"{value:.6g}" if isinstance(value, (int, float, np.number)) else str(value)


def _pooled(sd, groups):
    """{group: √mean sd²}, without the groups that have no spread."""
    pooled = np.sqrt((sd**2).groupby(groups).mean())  # the mean leaves NaN out
    return pooled[np.isfinite(pooled) & (pooled > 0)].to_dict()


def _where(key):
    panel, encoding, x = key
    return ", ".join([*([f"panel {panel}"] if panel else []), encoding, f"x = {x}"])


def _figure(rows):
    """(a sentence on the largest drift, that drift) of the rows that both sides have."""
    known, unknown = rows[rows["drift"].notna()], rows[rows["drift"].isna()]
    most, sentences = 0.0, []
    if len(known):
        key = known["drift"].idxmax()
        row, most = known.loc[key], float(known["drift"].max())
        sentences.append(
            f"largest drift {most:.3g} sd at {_where(key)}: {_values(row)}, "
            f"pooled sd {row['sd']:.3g}."
            if most
            else f"no drift in {_count(len(known), 'row')}."
        )
    if len(unknown):
        gap = (unknown["value"] - unknown["value_reference"]).abs().fillna(np.inf)
        key = gap.idxmax()
        sentences.append(
            f"no spread known for {_count(len(unknown), 'changed row')}, "
            f"the most changed {_where(key)}: {_values(unknown.loc[key])}."
        )
    return " ".join(sentences) or "no row in common.", most


def _values(row):
    return f"{row['value']:.6g}, in the reference {row['value_reference']:.6g}"


def _missing(rows):
    return [f"row {_where(key)} is not in this build." for key in rows.index[~rows["in_built"]]] + [
        f"row {_where(key)} is not in the reference." for key in rows.index[~rows["in_reference"]]
    ]


def _verdicts(built, reference):
    """(a line for each verdict that differs, how many claims there are)."""
    ids = list(dict.fromkeys([*reference, *built]))
    pairs = [(name, reference.get(name, "none"), built.get(name, "none")) for name in ids]
    return [f"{name}: {old} → {new}" for name, old, new in pairs if old != new], len(ids)


def _count(n, noun):
    return f"{n} {noun}" + ("" if n == 1 else "s")
