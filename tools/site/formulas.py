"""Formulas: what pymdownx.arithmatex has found between dollar signs, as MathML."""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<text>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)


def with_formulas(html: str) -> str:
    r"""The page with MathML for each formula that arithmatex's generic mode has marked: `\(…\)` in a line, `\[…\]` by itself."""
    return _FORMULA.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    is_block = match["open"] == "["
    formula = convert(unescape(match["text"]).strip(), display="block" if is_block else "inline")
    return f'<div class="formula">{formula}</div>' if is_block else formula
