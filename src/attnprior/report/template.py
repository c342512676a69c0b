"""The page of a study as a Jinja template. It is Python, so that a change of it reruns the reports."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark;
  --text: #1d2127; --soft: #5a6370; --line: #d5dae1; --back: #fff; --band: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7eb; --soft: #9aa5b3; --line: #3a424d; --back: #15181c; --band: #1e2329; }
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
.notes { color: var(--soft); font-size: .9rem; }
</style>
</head>
<body>
{%- macro grid(table) %}
<div class="scroll">
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
<main>
<h1>{{ title }}</h1>
<p class="headline">{{ headline }}</p>
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
<section class="notes">
<h2>How to read this</h2>
{%- for note in notes %}
<p>{{ note }}</p>
{%- endfor %}
</section>
</main>
<!-- provenance -->
<section>
<h2>Provenance</h2>
{{- grid(provenance.summary) }}
<details>
<summary>Every run</summary>
{{- grid(provenance.runs) }}
</details>
</section>
<!-- /provenance -->
</body>
</html>
"""
