"""The page of a study as a Jinja template. It is Python, so that a change of it reruns the reports."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:;
  script-src 'sha256-{{ script_hash }}'">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark;
  --text: #1d2127; --soft: #5a6370; --line: #d5dae1; --back: #fff; --band: #f4f6f8; --mark: #0072b2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text: #e4e7eb; --soft: #9aa5b3; --line: #3a424d; --back: #15181c; --band: #1e2329;
    --mark: #56b4e9; }
}
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; color: var(--text); background: var(--back);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.headline { font-size: 1.1rem; margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; margin: .75rem 0; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { vertical-align: bottom; white-space: normal; border-bottom-width: 2px; }
tbody th { font-weight: 500; }
tbody tr:nth-child(even) { background: var(--band); }
summary { cursor: pointer; margin: .5rem 0; }
a { color: var(--mark); }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; display: inline-block; margin-bottom: .75rem; }
:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
figure { margin: 1.25rem 0; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 60rem; margin-top: .5rem; }
svg.figure { display: block; width: 100%; height: auto; }
.wide svg.figure { min-width: 44rem; }
.wide.lead svg.figure { min-width: 0; }
svg.figure image { image-rendering: pixelated; }
.tools { display: flex; flex-wrap: wrap; gap: .75rem 1.25rem; align-items: center; margin: .75rem 0; }
.tools[hidden] { display: none; }
.tools label { display: flex; gap: .4rem; align-items: center; }
.tools input[type=search], .tools select { font: inherit; padding: .3rem .5rem; color: var(--text);
  background: var(--back); border: 1px solid var(--soft); border-radius: .25rem; min-height: 2.25rem; }
.tools input[type=search] { width: 16rem; max-width: 70vw; }
.tools input[type=checkbox] { width: 1.2rem; height: 1.2rem; }
.cards { list-style: none; margin: 0; padding: 0; display: grid; gap: .75rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.cards li { border: 1px solid var(--line); border-radius: .4rem; padding: .75rem; min-width: 0;
  font-size: .875rem; }
.cards h3 { font-size: .95rem; margin: 0 0 .35rem; overflow-wrap: anywhere; }
.cards p { margin: .35rem 0; }
.cards dl { margin: .5rem 0; }
.cards dt { color: var(--soft); margin-top: .35rem; overflow-wrap: anywhere; }
.cards dd { margin: 0; overflow-wrap: anywhere; }
.cards code { font-size: .8rem; }
.cards .head { display: flex; gap: .75rem; justify-content: space-between; align-items: center; }
.cards .head strong { font-size: 1.15rem; }
.spark { width: 7.5rem; height: 2.25rem; flex: none; border-bottom: 1px solid var(--soft);
  border-left: 1px solid var(--soft); }
.spark polyline { fill: none; stroke: var(--mark); stroke-width: 1.5; }
.links a { margin-right: .6rem; display: inline-block; padding: .15rem 0; }
.soft { color: var(--soft); }
@media (max-width: 40rem) { body { padding: 1rem .75rem; } }
.notes { color: var(--soft); font-size: .9rem; }
@media print {
  :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .tools, .skip { display: none; }
  .scroll { overflow: visible; }
  .wide svg.figure { min-width: 0; max-height: 24cm; }
  table { font-size: 7pt; }
  th, td { padding: .15rem .3rem; }
  tr, figure, .cards li { break-inside: avoid; }
  h2, h3, summary { break-after: avoid; }
}
</style>
</head>
<body>
{%- macro grid(table) %}
<div class="scroll" tabindex="0" role="group" aria-label="{{ table.title }}">
<table>
<caption>{{ table.title }}</caption>
<thead><tr>{% for cell in table.header %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in table.cells %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody>
</table>
</div>
{%- endmacro %}
{%- macro drawing(f) %}
{%- if f.left_out %}
<p class="notes">{{ f.title }}. {{ f.caption }}</p>
{%- else %}
<figure>
<div class="scroll wide{{ ' lead' if f.name in ('accuracy', 'labels') }}" tabindex="0" role="group"
 aria-label="{{ f.title }}">
{{- f.svg | safe }}</div>
<figcaption><strong>{{ f.title }}.</strong> {{ f.caption }}</figcaption>
</figure>
{%- endif %}
{%- endmacro %}
<a class="skip" href="#runs">Skip to the list of runs</a>
<main>
<h1>{{ title }}</h1>
<p class="headline">{{ headline }}</p>
{{- drawing(figures[0]) }}
{%- if budgets %}
<section>
<h2>By number of labels</h2>
<ul>
{%- for sentence in budgets %}
<li>{{ sentence }}</li>
{%- endfor %}
</ul>
</section>
{%- endif %}
{%- for panel in panels %}
<section>
<h2>{{ panel.title }}</h2>
<ul>
{%- for sentence in panel.findings %}
<li>{{ sentence }}</li>
{%- endfor %}
</ul>
{{- grid(panel.table) }}
<details>
<summary>Every pair and every seed</summary>
{{- grid(panel.pairs) }}
{{- grid(panel.seeds) }}
</details>
</section>
{%- endfor %}
<section>
<h2>Figures</h2>
{%- for f in figures[1:] %}
{{- drawing(f) }}
{%- endfor %}
</section>
<section class="notes">
<h2>How to read this</h2>
{%- for note in notes %}
<p>{{ note }}</p>
{%- endfor %}
</section>
{%- if paper %}
<section>
<h2>Paper against ours</h2>
{{- grid(paper) }}
{%- for note in paper_notes %}
<p class="notes">{{ note }}</p>
{%- endfor %}
</section>
{%- endif %}
<!-- provenance -->
<section>
<h2>Provenance</h2>
{{- grid(provenance) }}
<h2 id="runs" tabindex="-1">Runs</h2>
<form class="tools" hidden>
<label>Filter <input type="search" name="filter" placeholder="e.g. impulse seed 3" autocomplete="off"></label>
<label>Sort by <select name="sort">
<option value="place">name</option>
<option value="top1">test top-1</option>
<option value="seconds">time taken</option>
<option value="started">start</option>
</select></label>
<label><input type="checkbox" name="down"> largest first</label>
<output aria-live="polite" class="soft"></output>
</form>
<p class="soft">Small curves: validation top-1 over epochs, from 0 to 100 % (training loss where there is no
validation). Links lead to files beside this page, in the folder of the project.</p>
<ul class="cards">
{%- for c in cards %}
<li data-top1="{{ '' if c.top1 is none else c.top1 }}" data-seconds="{{ c.seconds }}"
  data-started="{{ c.started }}">
<h3>{{ c.name }}</h3>
<div class="head"><div><strong>{{ c.shown }}</strong> <span class="soft">test top-1</span><br>
<span class="soft">{{ '%.1f' % c.seconds }} s, {{ c.started[:10] }}</span></div>
{%- if c.curve %}
<svg class="spark" viewBox="0 0 120 36" preserveAspectRatio="none" role="img" aria-label="{{ c.curve.text }}">
<polyline points="{{ c.curve.points }}"/></svg>
{%- endif %}
</div>
<details><summary>Settings, data, code and machine</summary>
<dl>
{%- for key, values in c.settings %}
<dt>{{ key }}</dt><dd>{{ values }}</dd>
{%- endfor %}
{%- for path, link, digest in c.inputs %}
<dt><a href="{{ link }}">{{ path }}</a></dt><dd><code>sha256 {{ digest }}</code></dd>
{%- endfor %}
<dt>code</dt><dd>commit <code>{{ c.commit }}</code>
{%- if c.code %}, {{ c.code }} source files with hashes in run.json{% endif %}</dd>
<dt>machine</dt><dd>{{ c.machine }}</dd>
<dt>versions</dt><dd>{{ c.versions }}</dd>
<dt>started (UTC)</dt><dd>{{ c.started }}</dd>
</dl>
</details>
<p class="links">{% for name, link in c.links %}<a href="{{ link }}">{{ name }}</a>{% endfor %}</p>
</li>
{%- endfor %}
</ul>
</section>
<!-- /provenance -->
</main>
<script>{{ script | safe }}</script>
</body>
</html>
"""
