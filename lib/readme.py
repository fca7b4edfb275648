"""The numbers in README.md, written from the reference results.

What stands between `<!-- generated: NAME -->` and `<!-- end -->` in README.md is made by the
function of that name here; `python -m lib readme` writes it anew, and a test checks that it is
current.
"""

import re

from lib import bounds, files, gallery, guide, paths, studies
from lib.claims import Results
from lib.claims.verdicts import WORDS
from lib.studies import extrapolation

README = paths.ROOT / "README.md"
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write() -> None:
    """Bring the generated parts of README.md up to date."""
    files.write_text(updated(README.read_text(encoding="utf-8")), README)


def updated(text: str) -> str:
    """README.md's text with every generated part made anew.

    Raises ValueError for a part that no function here makes.
    """

    def make(match):
        begin, name, end = match.groups()
        if name not in PARTS:
            raise ValueError(f"README.md asks for {name!r}, which lib/readme.py does not make.")
        return f"{begin}{PARTS[name]()}\n{end}"

    return BLOCK.sub(make, text)


def findings() -> str:
    """Three findings with their numbers."""
    results = studies.read("extrapolation")
    key = ["source", "encoding", "train_length", "within"]
    reach = extrapolation.tolerance(results).set_index(key)
    L = extrapolation.L

    def percent(encoding):
        interval = extrapolation.relative_at(results, encoding, 16)
        low, high = ((x - 1) * 100 for x in (interval.low, interval.high))
        return f"{(interval.value - 1) * 100:+.1f} % (95 % interval {low:+.1f} to {high:+.1f})"

    def longest(encoding, source, train_length):
        row = reach.loc[(source, encoding, train_length, 0.02)]
        more = "at least " if row["censored"] else ""
        return f"{more}{row['ratio']:.1f}"

    paper = extrapolation.PAPER
    here = extrapolation.HERE
    gap = extrapolation.paired(
        results,
        ("alibi", L, "nonoverlapping", 2 * L),
        ("sinusoidal", 2 * L, "nonoverlapping", 2 * L),
    )
    return "\n".join(
        [
            f"- **ALiBi stays level, sinusoids do not.** At 16 times the training length the "
            f"perplexity of ALiBi changes by {percent('alibi')}, that of RoPE by "
            f"{percent('rope')}, that of sinusoids by {percent('sinusoidal')}.",
            f"- **How far is far enough?** Within 2 % of its perplexity at the training length L, "
            f"RoPE reaches {longest('rope', here, L)} L here and "
            f"{longest('rope', paper, 512)} L in the paper's table, sinusoids "
            f"{longest('sinusoidal', here, L)} L and {longest('sinusoidal', paper, 512)} L, "
            f"T5's bias {longest('t5', here, L)} L and {longest('t5', paper, 512)} L.",
            f"- **Train short, test long.** ALiBi trained at {L} and read at {2 * L} has a loss "
            f"{gap.value:+.3f} nats a token (95 % interval {gap.low:+.3f} to {gap.high:+.3f}) from "
            f"sinusoids trained at {2 * L}, over {gap.n} seeds.",
        ]
    )


def verdicts() -> str:
    """How many claims of the survey texts hold, in the reference."""
    counts = studies.read("claims")["verdict"].value_counts()
    names = [word for word in WORDS if word in counts]
    head = "| " + " | ".join(name.replace("_", " ") for name in names) + " |"
    rule = "|" + "---|" * len(names)
    return "\n".join([head, rule, "| " + " | ".join(str(counts[n]) for n in names) + " |"])


def costs() -> str:
    """What each profile costs: declared core-seconds, and what the reference took."""
    rows = ["| study | quick | default | full | the reference took |", "|---|---|---|---|---|"]
    for name in studies.STUDIES:
        cost, took = studies.study(name).COST, "–"
        if name in studies.of("reference"):
            took = f"{studies.provenance(name)['seconds']:,.0f}"
        rows.append(
            f"| {name} | {cost['quick']:,} | {cost['default']:,} | {cost['full']:,} | {took} |"
        )
    total = [sum(studies.study(n).COST[p] for n in studies.STUDIES) for p in paths.PROFILES]
    minutes = " | ".join(f"{seconds / 2 / 60:,.0f} min" for seconds in total)
    rows.append(f"| all, on two cores | {minutes} | |")
    return "\n".join(rows)


def answer() -> str:
    """Which encoding for training at 2k and running at 16k, from measured rows."""
    return "\n".join(f"- {sentence}" for sentence in guide.answer(Results("reference")))


ACROSS = 3  # pictures of the gallery side by side


def pictures() -> str:
    """The gallery: every figure there is, small, each a link to the notebook that explains it."""
    there = {
        name: shown
        for name, shown in gallery.FIGURES.items()
        if (paths.FIGURES / f"{name}.png").exists()
    }
    cells = [
        f"[![{shown.caption}](figures/{name}.png)]"
        f"(notebooks/{shown.cell.partition('#')[0]}.ipynb)<br>{shown.caption}"
        for name, shown in there.items()
    ]
    rows = [cells[n : n + ACROSS] for n in range(0, len(cells), ACROSS)]
    rows[-1] += [""] * (ACROSS - len(rows[-1]))
    return "\n".join(
        [
            "| " + " | ".join([" "] * ACROSS) + " |",
            "|" + "---|" * ACROSS,
            *("| " + " | ".join(row) + " |" for row in rows),
        ]
    )


PARTS = {
    "findings": findings,
    "answer": answer,
    "verdicts": verdicts,
    "costs": costs,
    "scaling": bounds.markdown,
    "pictures": pictures,
}
