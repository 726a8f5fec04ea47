// Curves by uPlot, and heatmaps over time on a canvas.

import { h, number } from "./dom.js";

const COLOURS = ["#0a6cd6", "#d1550a", "#17823b", "#9b3fb5", "#b3261e", "#0f8a8a", "#8a6d00", "#5b5fc7"];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// An exponential moving average; `weight` 0 leaves the values alone.
export function smoothed(values, weight) {
  if (!weight) return values;
  let last = null;
  return values.map((value) => { if (value === null || value === undefined) return value; last = last === null ? value : weight * last + (1 - weight) * value; return last; });
}

// `curves`: [{label, steps, values}]. Drag to zoom, double-click to see everything. Cursors of all plots move together.
export function curvePlot(title, curves, { logarithmic = false, weight = 0 } = {}) {
  const place = h("div", { className: "plot" }, h("h3", {}, title));
  const tables = curves.map((curve) => [curve.steps, smoothed(curve.values, weight)]);
  const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const axis = { stroke: style("--text"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
  const options = {
    width: 480, height: 220,
    cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { distr: logarithmic && data.slice(1).flat().every((value) => value === null || value === undefined || value > 0) ? 3 : 1 } },
    axes: [{ ...axis, label: "step", labelSize: 18 }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
    series: [{ label: "step" }, ...curves.map((curve, at) => ({ label: curve.label, stroke: COLOURS[at % COLOURS.length], dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length], width: 1.5, spanGaps: true, value: (_, value) => number(value) }))],
  };
  let plot = null;
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width < 50) return;
    if (!plot) plot = new uPlot({ ...options, width }, data, place); else plot.setSize({ width, height: options.height });
  });
  observer.observe(place);
  return {
    place,
    set(newCurves) {
      const next = newCurves.map((curve) => [curve.steps, smoothed(curve.values, weight)]);
      if (plot) plot.setData(next.length > 1 ? uPlot.join(next) : next[0], plot.scales.x.min === plot.data[0][0] && plot.scales.x.max === plot.data[0].at(-1));
    },
    close() { observer.disconnect(); if (plot) plot.destroy(); },
  };
}

// Light is low and dark is high (the reverse on a dark page): one hue, readable in grey.
export function heatmap(answer) {
  const { rows, unit } = answer;
  const columns = rows.length ? rows[0].values.length : 0;
  const all = rows.flatMap((row) => row.values.filter((value) => value !== null));
  const top = unit === "%" ? 100 : unit === "share" ? 1 : Math.max(...all, 1e-9);
  const canvas = h("canvas", { className: "heatmap", width: Math.max(columns, 1), height: Math.max(rows.length, 1), role: "img", ariaLabel: `${answer.quantity} of ${rows.length} rows over time; the table below has the figures` });
  canvas.style.height = `${Math.min(Math.max(rows.length * 18, 60), 600)}px`;
  const context = canvas.getContext("2d");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const picture = context.createImageData(canvas.width, canvas.height);
  rows.forEach((row, y) => row.values.forEach((value, x) => {
    const at = 4 * (y * columns + x);
    if (value === null) return;
    const share = Math.max(0, Math.min(1, value / top));
    const from = dark ? [24, 34, 48] : [238, 243, 250], to = dark ? [150, 205, 255] : [8, 48, 107];
    for (let colour = 0; colour < 3; colour += 1) picture.data[at + colour] = Math.round(from[colour] + share * (to[colour] - from[colour]));
    picture.data[at + 3] = 255;
  }));
  context.putImageData(picture, 0, 0);
  const told = h("p", { className: "quiet", role: "status" }, "Move over the picture to read a value.");
  const span = answer.end - answer.start;
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(Math.floor((event.clientX - box.left) / box.width * columns), columns - 1);
    const y = Math.min(Math.floor((event.clientY - box.top) / box.height * rows.length), rows.length - 1);
    if (!rows[y] || x < 0) return;
    const moment = new Date((answer.start + (x + .5) / columns * span) * 1000);
    const value = rows[y].values[x];
    told.textContent = `${rows[y].label}, ${moment.toLocaleString()}: ${value === null ? "no sample" : number(value, unit)}`;
  });
  const times = h("div", { className: "controls quiet" }, h("span", {}, new Date(answer.start * 1000).toLocaleString()), h("span", {}, "to"), h("span", {}, new Date(answer.end * 1000).toLocaleString()), h("span", {}, `0 to ${number(top, unit)}, ${dark ? "bright" : "dark"} is high`));
  const table = h("div", { className: "table" }, h("table", {}, h("thead", {}, h("tr", {}, ["Row", "Lowest", "Mean", "Highest"].map((head, at) => h("th", { scope: "col", className: at ? "number" : "" }, head)))),
    h("tbody", {}, rows.map((row) => {
      const found = row.values.filter((value) => value !== null);
      const mean = found.reduce((sum, value) => sum + value, 0) / Math.max(found.length, 1);
      return h("tr", {}, h("td", {}, row.label), [Math.min(...found), mean, Math.max(...found)].map((value) => h("td", { className: "number" }, found.length ? number(value, unit) : "–")));
    }))));
  return h("div", {}, times, canvas, told, h("h2", {}, "Figures"), table);
}
