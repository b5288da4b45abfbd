"""Paragraphs, notes, figures and tables as HTML."""

from __future__ import annotations

from hybridperf.report.html.document import Cell, Facts, Notes, Table, Text
from hybridperf.report.html.words import escaped, number, whole_figures

_FEW = 3  # rows that are not worth a button
# characters: more than so many get a width that does not break them over and over on a narrow page
_SHORT = 24
_LONG, _BEGINNING = (
    160,
    110,
)  # characters of a cell: more than so many are folded, so many are seen of them


def text_html(block: Text) -> str:
    """A paragraph."""
    return f"<p>{escaped(block.text)}</p>"


def notes_html(block: Notes) -> str:
    """A list, or the sentence that there is nothing to list."""
    if not block.items:
        return f'<p class="quiet">{escaped(block.none)}</p>'
    return (
        '<ul class="notes">'
        + "".join(f"<li>{escaped(item)}</li>" for item in block.items)
        + "</ul>"
    )


def facts_html(block: Facts) -> str:
    """Figures side by side, as many as fit."""
    items = "".join(_fact(*item) for item in block.items)
    return f'<dl class="facts">{items}</dl>'


def _fact(what: str, figure: str, remark: str) -> str:
    beside = f'<span class="remark">{whole_figures(remark)}</span>' if remark else ""
    return (
        f"<div><dt>{escaped(what)}</dt><dd><span"
        f' class="figure">{whole_figures(figure)}</span>{beside}</dd></div>'
    )


def table_html(block: Table) -> str:
    """A table that scrolls sideways by itself where it is too wide; its headers sort it where a
    script may run.
    """
    caption = f"<caption>{escaped(block.caption)}</caption>" if block.caption else ""
    kinds = ["word" if at < block.words else "number" for at in range(len(block.headers))]
    heads = "".join(
        f'<th scope="col" class="{kind}">{escaped(head)}</th>'
        for head, kind in zip(block.headers, kinds, strict=True)
    )
    rows = "".join(
        ('<tr class="best">' if at == block.best else "<tr>")
        + "".join(
            _cell(cell, kind, first=column == 0)
            for column, (cell, kind) in enumerate(zip(row, kinds, strict=True))
        )
        + "</tr>"
        for at, row in enumerate(block.rows[: block.most])
    )
    left = len(block.rows) - block.most
    more = f'<p class="quiet">... {left:,} more rows are not on this page</p>' if left > 0 else ""
    sortable = " sortable" if block.sortable and len(block.rows) > 1 else ""
    first = (
        f' data-first="{block.first}"'
        if min(len(block.rows), block.most) > block.first + _FEW
        else ""
    )
    name = escaped(block.caption or "table")
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{name}">'
        "<table"
        f' class="grid{sortable}"{first}>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{more}'
    )


def _cell(cell: Cell | str, kind: str, first: bool) -> str:
    cell = cell if isinstance(cell, Cell) else Cell(cell)
    value = f' data-v="{cell.value!r}"' if cell.value is not None else ""
    tag = 'th scope="row"' if first else "td"
    text = escaped(cell.text)
    if cell.share is not None:
        width = number(100 * min(max(cell.share, 0.0), 1.0))
        fill = (
            f'<span class="cellbar"><span class="fill k{cell.colour}"'
            f' style="width:{width}%"></span></span>'
        )
        text = f'<div class="barred">{fill}<span>{text}</span></div>'
    elif kind == "word":
        beginning = escaped(cell.text[:_BEGINNING])
        folded = (
            f"<details><summary>{beginning}…</summary>{text}</details>"
            if len(cell.text) > _LONG
            else text
        )
        long = " long" if len(cell.text) > _SHORT else ""
        text = f'<div class="words{long}">{folded}</div>'
    return f'<{tag} class="{kind}"{value}>{text}</{tag.split()[0]}>'
