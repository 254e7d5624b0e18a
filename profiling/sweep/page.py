"""A sweep as one HTML page that needs no other file.

Owns the page. Knows nothing of how figures were measured or drawn. All text goes through the template's escaping.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from profiling.sweep.report import COLUMNS, SweepReport, cells_of

_CAPTIONS = {
    "speedup": "Speed over plain decoding by gamma. Lines are medians, dots are prompts; the grey band is the "
    "noise. The diamonds are medians of mode auto, the default, which chooses mode and gamma itself.",
    "position": "Acceptance by position in the block: of the rounds that proposed a token there, the share that "
    "accepted it and all before it.",
    "length": "Acceptance along the output, with the fastest gamma of each mode.",
}
_EXAMPLE_COLUMNS = ("gamma", "accepted", "speed-up", "ms/token")
_EXAMPLE = (
    (2, "78 %", "1.6", 28),
    (4, "72 %", "2.3", 19),
    (6, "65 %", "2.5", 18),
    (8, "58 %", "2.4", 19),
    (10, "50 %", "2.1", 22),
)
"""A table that is often quoted; somebody else's pair and machine."""

_TEMPLATE = """{% macro table(columns, rows) -%}
<table>
<thead><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows -%}
<tr{% if row.best %} class="best"{% endif %}>{% for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Gamma sweep: {{ report.loaded.target }}</title>
<style>
body { font-family: sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.45; color: #222; }
table { border-collapse: collapse; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }
td.text, th.text { text-align: left; }
tr.best { background: #e7f3e7; font-weight: bold; }
.alarm { color: #b00020; font-weight: bold; }
.other { color: #666; border-left: 4px solid #ccc; padding-left: 1rem; }
img { max-width: 100%; }
code { overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>Which gamma is the fastest</h1>
<p>{{ report.setting_in_words }}</p>
<h2>Recommendation</h2>
<ul>
{% for found in report.overall -%}
<li>Temperature {{ "%g" | format(found.temperature) }}: {{ found.text }}</li>
{% endfor %}</ul>
{% if report.by_kind %}<p>By kind of prompt:</p>
<ul>
{% for found in report.by_kind -%}
<li>{{ found.kind }}, temperature {{ "%g" | format(found.temperature) }}: {{ found.text }}</li>
{% endfor %}</ul>
{% endif %}<p>{{ report.noise_in_words }}
<span{% if report.is_broken %} class="alarm"{% endif %}>{{ report.identity_in_words }}</span></p>
{% for picture in pictures %}<figure>
<img src="data:image/png;base64,{{ picture.data }}" alt="{{ picture.caption }}">
<figcaption>{{ picture.caption }}</figcaption>
</figure>
{% endfor %}<h2>Figures</h2>
<p>Speed-ups are over plain decoding, prompt by prompt in the same run: the median, the lowest and the highest prompt.
Times are milliseconds a token after the first round, medians. Length is the mean number of tokens of a round that
proposed something, the target's own included. Mode auto is what runs by default: it chooses between the other modes,
and gamma, by itself. Batch size is 1.</p>
{{ table(columns, rows) }}
<h2>For comparison: somebody else's figures</h2>
<div class="other">
<p>Not measured here: an example that is often quoted, of a 7B target with a 0.5B draft on a consumer card. Another
pair, another machine and other prompts; only the shape is comparable.</p>
{{ table(example_columns, example) }}
</div>
<h2>Machine and command</h2>
<table>
<tbody>
{% for name, value in facts %}<tr><td class="text">{{ name }}</td><td class="text">{{ value }}</td></tr>
{% endfor %}</tbody>
</table>
<p><code>{{ report.machine.command }}</code></p>
</body>
</html>
"""


def sweep_page(report: SweepReport, plots: Mapping[str, Path]) -> str:
    """The page.

    Args:
        report: what it shows.
        plots: PNG files by what they show, which become part of the page; none leaves pictures out.
    """
    chosen = {(found.temperature, found.kind, found.best.mode, found.gamma) for found in report.recommendations}
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    facts = {**report.machine, **{f"loaded: {name}": value for name, value in report.loaded.items()}}
    return environment.from_string(_TEMPLATE).render(
        report=report,
        columns=COLUMNS,
        rows=[
            {
                "cells": cells_of(row),
                "best": row.gamma is not None and (row.temperature, row.kind, row.mode, row.gamma) in chosen,
            }
            for row in report.rows
        ],
        pictures=[
            {"data": base64.b64encode(path.read_bytes()).decode("ascii"), "caption": _CAPTIONS[what]}
            for what, path in plots.items()
        ],
        example_columns=_EXAMPLE_COLUMNS,
        example=[{"cells": cells, "best": False} for cells in _EXAMPLE],
        facts=[(name, value) for name, value in facts.items() if name != "command"],
    )
