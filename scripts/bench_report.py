#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `make bench` measured as one page of HTML that needs nothing else.

Usage: bench_report.py FOLDER [PAGE.html]

FOLDER has compare.json of `farcall compare --json` and, if they were measured, broadcast.json,
scaling.json, study/ of scripts/study_2024.sh, and doors.txt and python.txt, which are shown as
they are. The page is FOLDER/report.html if no other is named. The plots need python3-plotly.
"""

import argparse
import base64
import gzip
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from html import escape
from typing import Any

from bench_page import others, plots, rows, sentences, tables

PARTS = pathlib.Path(__file__).resolve().parent / "bench_page"
# First what decides most about the figures.
MACHINE = (("cpu", "processor"), ("processors", "processors"), ("kernel", "kernel"),
           ("virtualization", "virtualization"), ("two_cpus", "two processors are"),
           ("one_cpu", "one processor is"), ("load", "load at the start"), ("time", "date"),
           ("farcall", "version of farcall"), ("command", "command"))
HOW_TO_READ = """
<details><summary>How to read it</summary><ul>
<li>A <em>round trip</em> is a message there and its answer of the same size back; its figure is the
median of real samples. <em>Throughput</em> streams messages one way; the clock stops at the last
read. What only answers calls has no throughput of its own.</li>
<li><em>Placement</em> decides more than the mechanism does. On one processor an answer costs a
switch. On two, a reader that spins sees the cache line at once, or an idle processor is woken, which
on virtual machines is the dearest thing here.</li>
<li><em>spin</em> never sleeps and burns a processor; <em>block</em> sleeps at once;
<em>adaptive</em> spins as long as that has paid lately.</li>
<li><em>× control</em> holds a round trip against cacheline_pingpong, or, on one processor, against
futex_pingpong. Both can be beaten: by who has request and reply in the same cache lines, and by who
hands a processor over without sleeping.</li>
<li>Machines are noisy. Small print and thin bars are the least and the greatest of the rounds:
believe differences that are larger.</li>
<li>† the message went in fragments, because the mechanism takes none that long.</li>
</ul></details>"""


class Page:
    """Collects sections, and the plots that page.js draws in them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.plots: list[plots.Plot] = []
        self.sections: list[tuple[str, str]] = []

    def add(self, lines: Iterator[str] | list[str]) -> None:
        self.lines += lines

    def section(self, identity: str, title: str) -> None:
        if self.sections:
            self.lines.append("</section>")
        self.sections.append((identity, title))
        self.lines.append(f'<section aria-labelledby="{identity}"><h2 id="{identity}">{title}</h2>')

    def draw(self, group: str, drawn: list[plots.Plot]) -> None:
        if not drawn:
            return
        shown = {trace["name"]: trace.get("visible", True) for plot in drawn
                 for trace in reversed(plot["traces"])}
        names = dict.fromkeys(trace["name"] for plot in drawn for trace in plot["traces"])
        boxes = "".join(
            f'<label><input type="checkbox" data-group="{group}" data-line="{escape(name)}"'
            f'{" checked" if shown[name] else ""}> {escape(name)}</label>' for name in names)
        self.lines.append(f"<details><summary>Lines that are shown ({len(names)} to choose from)"
                          f"</summary><fieldset><legend>Lines</legend>{boxes}</fieldset></details>")
        self.lines.append('<div class="plots">')
        for plot in drawn:
            self.lines.append(
                f'<figure><figcaption>{escape(plot["title"])}</figcaption>'
                f'<div class="plot" id="{plot["id"]}" role="img" aria-label="{escape(plot["alt"])}">'
                '<p class="missing">The plot needs scripts and python3-plotly.</p></div></figure>')
            for trace in plot["traces"]:
                trace["visible"] = shown[trace["name"]]
            self.plots.append({**plot, "group": group})
        self.lines.append("</div>")


def library() -> str:
    """plotly.js, packed; nothing where it is not installed."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import]
    except ImportError:
        print("bench_report: no plots: python3-plotly is not installed", file=sys.stderr)
        return ""
    packed = gzip.compress(get_plotlyjs().encode(), 9, mtime=0)
    return base64.b64encode(packed).decode()


def read(folder: pathlib.Path, name: str) -> Any:
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def machine(results: rows.Row) -> Iterator[str]:
    facts = dict(results.get("machine", {}))
    first = [(title, facts.pop(name)) for name, title in MACHINE if name in facts]
    yield from tables.facts(first)
    if facts:
        yield "<details><summary>More of the machine</summary>"
        yield from tables.facts([(name.replace("_", " "), value) for name, value in facts.items()])
        yield "</details>"


def left_out(results: rows.Row) -> Iterator[str]:
    said = [f"{row['label']}, {rows.size_name(row['message_bytes'])}, {row['placement']}: failed:"
            f" {row['error']}" for row in results["rows"] if rows.has_failed(row)]
    for entry in [*results.get("absent", []), *results.get("skipped", [])]:
        what = [entry.get("mechanism"), entry.get("placement")]
        if entry.get("message_bytes") is not None:
            what.append(rows.size_name(entry["message_bytes"]))
        said.append(f"{', '.join(part for part in what if part)}: {entry['reason']}")
    if said:
        yield f"<details><summary>What failed or was left out ({len(said)})</summary><ul>"
        yield from (f"<li>{escape(line)}</li>" for line in said)
        yield "</ul></details>"


def pairs(page: Page, results: rows.Row) -> None:
    page.section("plots-of-pairs", "Time and throughput by size")
    page.draw("pairs", plots.of_pairs(results["rows"]))
    page.section("figures", "All figures")
    page.add(tables.of_pairs(results, results["rows"]))
    page.add(left_out(results))
    measured = list(sentences.controls([row for row in results["rows"] if not rows.has_failed(row)]))
    if measured:
        page.section("controls", "The controls: what bounds what")
        page.add(tables.facts([(name, f"{meaning} Here: {here}.") for name, meaning, here in measured]))
    page.section("machine", "The machine")
    page.add(machine(results))


def broadcasts(page: Page, results: rows.Row | None) -> None:
    if results is None or not results.get("rows"):
        return
    rows.name_rows(results["rows"])
    page.section("broadcast", "One writer, many readers")
    page.draw("broadcast", plots.of_broadcasts(results["rows"]))
    page.add(tables.of_broadcasts(results, results["rows"]))
    page.add(left_out(results))


def scaling(page: Page, results: rows.Row | None) -> None:
    if results is None or not results.get("rows"):
        return
    rows.name_rows(results["rows"])
    measured = others.scaling_rows(results)
    page.section("many-clients", "Many clients")
    page.draw("scaling", others.of_scaling(measured))
    page.add(tables.of_scaling(measured))
    page.add(left_out(results))


def text(page: Page, path: pathlib.Path, identity: str, title: str) -> None:
    if path.is_file() and path.stat().st_size:
        if not any(title == there for _, there in page.sections):
            page.section(identity, title)
        said = path.read_text(encoding="utf-8", errors="replace")
        page.add([f'<pre tabindex="0" role="region" aria-label="{escape(title)}, as it was printed">'
                  f"{escape(said)}</pre>"])


def study(page: Page, folder: pathlib.Path) -> None:
    results = read(folder, "results.json")
    measured = others.study_rows(results) if results else []
    if measured:
        page.section("study", "The 2024 study")
        page.add(["<p>Time to make a channel and a child that writes 40,000 bytes, and to read them;"
                  " docs/study-2024.md tells what that means.</p>"])
        page.draw("study", others.of_study(measured))
    text(page, folder / "summary.md", "study", "The 2024 study")


def script(code: str) -> tuple[str, str]:
    """A script, and what the policy of the page calls it."""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return f"<script>{code}</script>", f"'sha256-{digest}'"


def document(page: Page, results: rows.Row) -> Iterator[str]:
    """The page may run its own scripts, and load nothing from anywhere."""
    packed = library() if page.plots else ""
    own, permitted = script((PARTS / "page.js").read_text(encoding="utf-8"))
    if packed:
        permitted += " " + script(gzip.decompress(base64.b64decode(packed)).decode())[1]
    title = "What each way between two processes costs here"
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield ('<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
           f"'unsafe-inline'; img-src data: blob:; script-src {permitted}\">")
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<title>farcall: {title}</title><link rel="icon" href="data:,">'
    yield f"<style>{(PARTS / 'page.css').read_text(encoding='utf-8')}</style></head><body>"
    yield f'<a class="skip" href="#figures">To the figures</a><header><h1>{title}</h1>'
    yield '<div class="result">'
    yield from (f"<p>{escape(said)}</p>" for said in sentences.results(results["rows"]))
    yield "</div>"
    if rows.dig(results, "settings", "quick"):
        yield '<p class="warning">A quick run: few samples. Look, but do not quote.</p>'
    links = "".join(f'<li><a href="#{identity}">{name}</a></li>' for identity, name in page.sections)
    yield f'<nav aria-label="Sections"><ul>{links}</ul></nav>{HOW_TO_READ}</header><main>'
    yield from page.lines
    yield "</section></main><footer><p>Plots are drawn by plotly.js, under the MIT licence.</p></footer>"
    plotted = json.dumps(page.plots).replace("</", "<\\/")
    yield f'<script type="application/json" id="plots">{plotted}</script>'
    if packed:
        yield f'<script type="text/plain" id="library">{packed}</script>'
    yield f"{own}</body></html>"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("page", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    folder: pathlib.Path = arguments.folder
    results = read(folder, "compare.json")
    if not results or not results.get("rows"):
        sys.exit(f"bench_report: {folder}/compare.json: no rows were measured")
    rows.name_rows(results["rows"])
    page = Page()
    pairs(page, results)
    broadcasts(page, read(folder, "broadcast.json"))
    scaling(page, read(folder, "scaling.json"))
    text(page, folder / "doors.txt", "doors", "Doors under load")
    text(page, folder / "python.txt", "python", "Python beside what it has")
    study(page, folder / "study")
    # Written beside and renamed: a page is whole or not there.
    path: pathlib.Path = arguments.page or folder / "report.html"
    partial = path.with_name(path.name + ".part")
    partial.write_text("\n".join(document(page, results)) + "\n", encoding="utf-8")
    os.replace(partial, path)


if __name__ == "__main__":
    main()
