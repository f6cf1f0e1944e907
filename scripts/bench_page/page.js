// SPDX-License-Identifier: Apache-2.0
//
// Draws the plots, sorts and filters the tables. Without it the tables are whole.
"use strict";

// Okabe and Ito's, which people who are colour-blind tell apart; lighter ones on a dark page.
const PALETTES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b0498a", "#000000", "#b07a00", "#3a9bd0"],
  dark: ["#5fb0ee", "#ff8a4c", "#2fc79a", "#e79ac6", "#f2f2f2", "#f0b53a", "#9bd8ff"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const plots = JSON.parse(document.getElementById("plots").textContent);

function coloured(trace, palette, grey) {
  const colour = trace.meta.colour < 0 ? grey : palette[trace.meta.colour];
  const made = { ...trace, line: { ...trace.line, color: colour }, marker: { ...trace.marker, color: colour } };
  if (trace.error_y) made.error_y = { ...trace.error_y, color: colour };
  return made;
}

function laidOut(plot, place) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const rule = style.getPropertyValue("--rule").trim();
  const narrow = place.clientWidth < 560;
  const axis = { gridcolor: rule, linecolor: rule, zeroline: false, automargin: true };
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: ink, family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { font: { family: "system-ui, sans-serif" } },
    margin: { l: 50, r: 10, t: 34, b: 50 }, hovermode: "closest", showlegend: true,
    legend: narrow ? { orientation: "h", y: -0.25, yanchor: "top", font: { size: 11 } } : { x: 1.02, y: 1, font: { size: 11 } },
    xaxis: { ...axis, ...plot.layout.xaxis }, yaxis: { ...axis, ...plot.layout.yaxis },
  };
}

async function draw(name) {
  const grey = name === "dark" ? "#a8a8a8" : "#707070";
  for (const plot of plots) {
    const place = document.getElementById(plot.id);
    const traces = plot.traces.filter((trace) => trace.visible).map((trace) => coloured(trace, PALETTES[name], grey));
    await Plotly.react(place, traces, laidOut(plot, place), { responsive: true, displaylogo: false, displayModeBar: place.clientWidth < 560 ? false : "hover" });
    // The page answers between two plots, except where it is about to be printed.
    if (plot !== plots.at(-1) && !printing) await new Promise((resume) => setTimeout(resume, 0));
  }
}

// Boxes that show and hide a line in all plots of a section: for the keyboard, and for lines that
// are not shown at first.
function linkBoxes() {
  for (const box of document.querySelectorAll("input[data-line]")) {
    box.addEventListener("change", () => {
      for (const plot of plots.filter((one) => one.group === box.dataset.group)) {
        for (const trace of plot.traces) if (trace.name === box.dataset.line) trace.visible = box.checked;
      }
      draw(scheme());
    });
  }
}

function scheme() {
  return dark.matches ? "dark" : "light";
}

function show(name, isForPaper) {
  printing = isForPaper;
  return draw(name);
}

// A page of this size is kept small by packing the library.
async function loadLibrary() {
  const packed = document.getElementById("library");
  if (!packed) return false;
  const letters = atob(packed.textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; ++i) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  packed.remove();
  return true;
}

async function showPlots() {
  if (!(await loadLibrary())) return;
  for (const note of document.querySelectorAll(".plot .missing")) note.remove();
  await draw(scheme());
  linkBoxes();
  dark.addEventListener("change", () => draw(scheme()));
  window.addEventListener("beforeprint", () => show("light", true));
  window.addEventListener("afterprint", () => show(scheme(), false));
}

// Figures by value, texts by letter; what is missing comes last either way.
function valueOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.textContent === "–" ? null : cell.textContent;
}

function compare(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
}

function sortBy(table, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyed = [...table.tBodies[0].rows].map((row) => [valueOf(row, head.cellIndex), row]);
  keyed.sort(([one], [other]) => {
    if (one === null || other === null) return (one === null) - (other === null);
    return down ? compare(other, one) : compare(one, other);
  });
  table.tBodies[0].append(...keyed.map(([, row]) => row));
}

function filter(form) {
  const rows = [...document.getElementById(form.dataset.table).tBodies[0].rows];
  for (const row of rows) {
    row.hidden = [...form.querySelectorAll("[data-filter]")].some((chooser) => {
      const has = row.dataset[chooser.dataset.filter];
      if (chooser.value === "" || has === "") return false;
      return chooser.tagName === "SELECT" ? has !== chooser.value : !has.includes(chooser.value.toLowerCase());
    });
  }
  form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
}

for (const table of document.querySelectorAll("table")) {
  for (const button of table.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sortBy(table, button.closest("th")));
  }
}
for (const form of document.querySelectorAll("form[data-table]")) {
  form.addEventListener("input", () => filter(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  filter(form);
}
showPlots()
  .catch((error) => {
    console.error(error);
    for (const note of document.querySelectorAll(".plot .missing")) note.textContent = "This browser cannot draw the plots; the table has their figures.";
  })
  .finally(() => { document.documentElement.dataset.ready = "yes"; });
