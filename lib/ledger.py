"""The ledger of claims and the survey's tables as a reader sees them: HTML, and plain text.

The HTML needs no other file. Its boxes to filter by text and verdict need a script, which runs in
the pages and where the reader ran the cell; without it everything is there, by verdict, in parts
that fold.
"""

from html import escape

import pandas as pd

from lib import claims, gallery
from lib.claims import entries, tables
from lib.claims.verdicts import HOLDS, IN_PART, NOT_TESTABLE, REFUTED, UNDECIDED
from lib.figures import short

# A sign and a colour a verdict: blue and orange stay apart for colour-blind readers, and the word
# stands beside them.
SIGNS = {HOLDS: "✓", IN_PART: "◐", REFUTED: "✗", UNDECIDED: "?", NOT_TESTABLE: "–"}
COLOURS = {
    HOLDS: "#dcebfa", IN_PART: "#fff3c4", REFUTED: "#fbd9c5", UNDECIDED: "#ececec",
    NOT_TESTABLE: "#ececec",
}  # fmt: skip
CELL_WORDS = {
    HOLDS: "agrees", IN_PART: "agrees in part", REFUTED: "disagrees", UNDECIDED: "undecided",
    NOT_TESTABLE: "not testable here",
}  # fmt: skip
_COUNTED = {
    HOLDS: "agree", IN_PART: "agree in part", REFUTED: "disagree", UNDECIDED: "undecided",
    NOT_TESTABLE: "not testable here",
}  # fmt: skip


def _style(more: str = "") -> str:
    return f'style="text-align:left;vertical-align:top;padding:4px 8px;{more}"'


class Page:
    """Something to show: HTML where that can be shown, and text."""

    def __init__(self, html: str, text: str):
        self.html, self.text = html, text

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": self.html, "text/plain": self.text}


def words(verdict: str) -> str:
    return verdict.replace("_", " ")


# ---- the ledger ----------------------------------------------------------------------------------


def page(verdicts: pd.DataFrame) -> Page:
    """Every claim, by verdict. verdicts: as `claims.decide` makes them."""
    known = {entry.id: entry for entry in entries.load()}
    rows = verdicts[verdicts["id"].isin(known)].fillna("")
    parts, lines = [_filters(rows)], []
    for verdict in SIGNS:
        group = rows[rows["verdict"] == verdict]
        if group.empty:
            continue
        parts.append(_group(verdict, group, known))
        lines.append(f"{words(verdict)} ({len(group)}): {', '.join(group['id'])}")
    html = f'<div class="claims-ledger">{"".join(parts)}{_SCRIPT}</div>'
    return Page(html, "\n".join(lines))


def _filters(rows: pd.DataFrame) -> str:
    def boxes(kind, names):
        return " ".join(
            f'<label style="margin-right:1em"><input type="checkbox" checked data-{kind}="{name}">'
            f" {escape(words(name))}</label>"
            for name in names
        )

    there = [verdict for verdict in SIGNS if (rows["verdict"] == verdict).any()]
    return (
        f'<p class="claims-filter">Texts: {boxes("text", entries.TEXTS)}<br>'
        f"Verdicts: {boxes('verdict', there)}</p>"
    )


def _group(verdict: str, rows: pd.DataFrame, known: dict) -> str:
    body = "".join(_row(row, known[row.id]) for row in rows.itertuples())
    head = f"{SIGNS[verdict]} {words(verdict)} ({len(rows)})"
    return (
        f'<details open data-verdict="{verdict}"><summary><b>{head}</b></summary>'
        f'<table style="width:100%"><tbody>{body}</tbody></table></details>'
    )


def _row(row, entry) -> str:
    sides = ", ".join(
        f"{side}: {words(verdict) if f'{side}: ' in row.measured else 'not asked'}"
        for side, verdict in (("here", row.verdict_here), ("published", row.verdict_published))
    )
    facts = [("expected", row.expected), ("measured", row.measured), ("about", row.detail)]
    facts += [("sources", "; ".join(entry.sources))] if entry.sources else []
    more = "".join(f"<p><i>{name}:</i> {escape(text)}</p>" for name, text in facts if text)
    links = f'<a href="{gallery.link(entry.cell)}">decided in {entry.cell[:2]}</a>'
    if entry.figure:
        links += f'<br><a href="{gallery.link(gallery.shown_in(entry.figure))}">figure</a>'
    look = f"background:{COLOURS[row.verdict]};color:#111;white-space:nowrap"
    return (
        f'<tr data-texts="{" ".join(entry.texts)}" id="claim-{row.id}">'
        f"<td {_style('white-space:nowrap')}><b>{row.id}</b><br>{' '.join(entry.texts)}</td>"
        f"<td {_style()}>{escape(entry.claim)}<details><summary>{escape(sides)}</summary>{more}"
        f"</details></td>"
        f"<td {_style(look)}>{SIGNS[row.verdict]} {words(row.verdict)}</td>"
        f"<td {_style('white-space:nowrap')}>{links}</td></tr>"
    )


_SCRIPT = """<script>
for (const ledger of document.querySelectorAll(".claims-ledger")) {
  const chosen = kind => [...ledger.querySelectorAll(`input[data-${kind}]`)]
    .filter(box => box.checked).map(box => box.dataset[kind]);
  const show = () => {
    const texts = chosen("text"), verdicts = chosen("verdict");
    for (const row of ledger.querySelectorAll("tr[data-texts]"))
      row.hidden = !row.dataset.texts.split(" ").some(text => texts.includes(text));
    for (const part of ledger.querySelectorAll("details[data-verdict]"))
      part.hidden = !verdicts.includes(part.dataset.verdict) ||
        ![...part.querySelectorAll("tr[data-texts]")].some(row => !row.hidden);
  };
  for (const box of ledger.querySelectorAll("input")) box.onchange = show;
}
</script>"""


# ---- the survey's tables -------------------------------------------------------------------------


def cells_of(table: str, results: claims.Results) -> list[tables.Cell]:
    """The cells of a table, with the tolerances that its claim has."""
    entry = next(entry for entry in entries.load() if entry.id == table)
    return tables.cells(table, results, **entry.tolerance)


def table(cells: list[tables.Cell]) -> Page:
    """A table of the survey: in each cell its word, what was found, and whether the two agree."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    at = {(cell.encoding, cell.column): cell for cell in cells}
    head = "".join(f"<th {_style()}>{escape(name)}</th>" for name in ("", *columns))
    body = ""
    for encoding in dict.fromkeys(cell.encoding for cell in cells):
        body += f"<tr><th {_style()}>{escape(short(encoding))}</th>"
        body += "".join(_said_and_found(at.get((encoding, column))) for column in columns) + "</tr>"
    html = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return Page(html, f"{len(cells)} cells: {counted(cells)}")


def _said_and_found(cell: tables.Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    look = f"background:{COLOURS[cell.verdict]};color:#111"
    if cell.verdict == REFUTED:
        look += ";border:2px solid #b23a08"
    word = f"{SIGNS[cell.verdict]} {CELL_WORDS[cell.verdict]}"
    return f"<td {_style(look)}>“{escape(cell.said)}”<br>{escape(cell.found)}<br><b>{word}</b></td>"


def counted(cells: list[tables.Cell]) -> str:
    """How many cells agree and how many do not, in words."""
    verdicts = [cell.verdict for cell in cells]
    return ", ".join(
        f"{verdicts.count(verdict)} {word}"
        for verdict, word in _COUNTED.items()
        if verdict in verdicts
    )
