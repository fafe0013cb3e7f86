"""The HTML pages: templates with their style, filled by Jinja2, which escapes every text that is put in.

A page is one file: figures are embedded, and nothing is loaded from elsewhere. There is no script but that of a page
that renews itself while its run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from experiments.plot_style import data_uri

LAYOUT = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #222; background: #fff;
       margin: 0 auto; padding: 1rem; max-width: 76rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.lead { color: #555; margin: 0 0 1rem; }
.note { background: #fff6dd; border-left: 4px solid #e69f00; padding: .5rem .75rem; margin: .5rem 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.numbers div { border: 1px solid #ddd; border-radius: .5rem; padding: .5rem .7rem; }
.numbers b { display: block; font-size: 1.35rem; line-height: 1.3; }
.numbers span { color: #555; font-size: .85rem; }
.figures { columns: 2 30rem; column-gap: 1.2rem; }
.figures img { width: 100%; max-width: 40rem; height: auto; margin-bottom: 1.2rem; break-inside: avoid; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e5e5e5; text-align: left; vertical-align: top; }
td:first-child { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.chip { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
.now { font-size: 1.15rem; font-weight: 600; }
.missing td { background: #fff6dd; }
.gone main::before { content: "The server does not answer; this is what it said last."; display: block;
                     background: #fbe3e3; border-left: 4px solid #d55e00; padding: .5rem .75rem; }
pre { background: #f5f5f5; padding: .75rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; }
@media (max-width: 40rem) { body { padding: .75rem; } th, td { padding: .25rem .4rem; } }
</style>
</head>
<body>
"""

FIGURES = """\
{% if figures %}<div class="figures">
{% for figure in figures %}<img src="{{ figure.source }}" alt="{{ figure.title }}">
{% endfor %}</div>{% endif %}
"""

RUN = (
    LAYOUT
    + """\
<main>
<h1>{{ title }}</h1>
<p class="lead"><b>{{ what }}</b> {{ lead }} {{ when }}</p>
{% if live %}<p class="now">{{ live.headline }}</p>
<h2>Devices</h2>
<div class="scroll"><table>
<tr>{% for head in live.heads %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in live.devices %}<tr{% if row[1] == "MISSING" %} class="missing"{% endif %}>
{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% for warning in live.warnings %}<p class="note">{{ warning }}</p>
{% endfor %}{% endif %}
{% for note in notes %}<p class="note">{{ note }}</p>
{% endfor %}
<div class="numbers">
{% for name, value in numbers %}<div><b>{{ value }}</b><span>{{ name }}</span></div>
{% endfor %}</div>

<h2>Plots</h2>
"""
    + FIGURES
    + """\
{% if not figures %}<p>No round has ended yet.</p>{% endif %}

{% if clients %}<h2>Clients</h2>
<div class="scroll"><table>
<tr><th>client</th>{% if groups_known %}<th>true group</th>{% endif %}<th>cluster</th>
<th class="number">samples</th><th class="number">accuracy</th><th class="number">up</th><th class="number">down</th>
<th class="number">failures</th></tr>
{% for c in clients %}<tr><td>{{ c.name }}</td>{% if groups_known %}<td>{{ c.group }}</td>{% endif %}
<td>{% if c.colour %}<span class="chip" style="background:{{ c.colour }}"></span>{% endif %}{{ c.cluster }}</td>
<td class="number">{{ c.samples }}</td>
<td class="number">{{ c.accuracy }}</td><td class="number">{{ c.up }}</td><td class="number">{{ c.down }}</td>
<td class="number">{{ c.failures }}</td></tr>
{% endfor %}</table></div>{% endif %}

{% if by_class %}<h2>Accuracy by class</h2>
<p>Of the model that each device was sent, and of how many samples; of devices that report it.</p>
<div class="scroll"><table>
{% for row in by_class %}<tr>{% for cell in row %}{% if loop.index0 == 0 or row == by_class[0] %}
<th>{{ cell }}</th>{% else %}<td class="number">{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</table></div>{% endif %}

<h2>Failures</h2>
{% if failures %}<div class="scroll"><table>
<tr><th class="number">round</th><th>client</th><th>reason</th></tr>
{% for round, client, reason in failures %}<tr><td class="number">{{ round }}</td><td>{{ client }}</td>
<td>{{ reason }}</td></tr>
{% endfor %}</table></div>{% elif absences %}<p>Every client that was asked gave a usable reply; not all were there.</p>
{% else %}<p>None: every client that was asked gave a usable reply.</p>{% endif %}
{% if absences %}<h3>Absent</h3>
<div class="scroll"><table>
<tr><th>client</th><th class="number">rounds</th><th>which</th></tr>
{% for client, count, which in absences %}<tr><td>{{ client }}</td><td class="number">{{ count }}</td>
<td>{{ which }}</td></tr>
{% endfor %}</table></div>{% endif %}

<h2>How to reproduce</h2>
<p>{{ reproduce.text }}</p>
<pre>{{ reproduce.command }}</pre>

<h2>Settings</h2>
{% for heading, rows in settings %}<details{% if loop.first %} open{% endif %}><summary>{{ heading }}</summary>
<div class="scroll"><table>
{% for key, value in rows %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}</table></div></details>
{% endfor %}
{% if extra %}
<h2>What the strategy recorded</h2>
<details><summary>as JSON</summary><pre>{{ extra }}</pre></details>{% endif %}
</main>
{% if live %}<script nonce="{{ live.nonce }}">
setInterval(async () => {
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const open = [...document.querySelectorAll("details")].map((details) => details.open);
    next.querySelectorAll("details").forEach((details, i) => { if (i < open.length) details.open = open[i]; });
    document.querySelector("main").replaceWith(next);
    document.body.classList.remove("gone");
  } catch { document.body.classList.add("gone"); }
}, {{ live.seconds * 1000 }});
</script>
<noscript><meta http-equiv="refresh" content="{{ live.seconds }}"></noscript>{% endif %}
</body>
</html>
"""
)

COMPARISON = (
    LAYOUT
    + """\
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
{% for note in notes %}<p class="note">{{ note }}</p>
{% endfor %}
{% for table in tables %}<h2>{{ table.title }}</h2>
<div class="scroll"><table>
<tr><th>strategy</th>{% for label in table.columns %}<th class="number">{{ label }}</th>{% endfor %}</tr>
{% for label, values in table.rows %}<tr><td>{{ label }}</td>
{% for value in values %}<td class="number">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}
{% for claim in claims %}<h2>{{ claim.title }}</h2>
<div class="scroll"><table>
<tr>{% for head in claim.heads %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in claim.rows %}<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}
<h2>Plots</h2>
"""
    + FIGURES
    + """\
{% if failures %}<h2>Failed cells</h2>
{% for cell, reason in failures %}<h3>{{ cell }}</h3><pre>{{ reason }}</pre>
{% endfor %}{% endif %}
</body>
</html>
"""
)


def embed(figures: Sequence[Figure]) -> list[dict[str, str]]:
    """Title and source of each figure, drawn."""
    return [{"title": figure.get_suptitle(), "source": data_uri(figure)} for figure in figures]


def render(template: str, figures: Sequence[Mapping[str, str]], **values: Any) -> str:
    """Fill one of the templates above with what `embed` drew; every value is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(figures=figures, **values)
