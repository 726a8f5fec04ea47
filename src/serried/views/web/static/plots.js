// Curves by uPlot, and heatmaps over time on a canvas.

import { add, clock, h, marks, number } from "./dom.js";

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const LIGHT = ["#0a6cd6", "#d1550a", "#17823b", "#9b3fb5", "#b3261e", "#0f8a8a", "#8a6d00", "#5b5fc7"];
const DARK = ["#6db3ff", "#ff9a57", "#5fd08a", "#d99bf0", "#ff8a80", "#4fd0d0", "#e0c050", "#a9adff"];
const colour = (at) => (isDark() ? DARK : LIGHT)[at % LIGHT.length];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// An exponential moving average; `weight` 0 leaves the values alone.
export function smoothed(values, weight) {
  if (!weight) return values;
  let last = null;
  return values.map((value) => { if (value === null || value === undefined) return value; last = last === null ? value : weight * last + (1 - weight) * value; return last; });
}

// `curves`: [{label, steps, values, low?, high?}]. Drag to zoom, double-click to see everything. A single long curve has a
// band from its lowest to its highest values. Cursors of all plots move together. `begins`: [[attempt, step]], marked.
export function curvePlot(title, curves, { begins = [], logarithmic = false, weight = 0, height = 220 } = {}) {
  let shown = curves, marked = begins;
  const hasBand = () => shown.length === 1 && Boolean(shown[0].low);
  const isPositive = () => shown.every((curve) => (curve.low || curve.values).every((value) => value > 0));
  const kind = () => [hasBand(), isPositive(), ...shown.map((curve) => curve.label)].join();
  const table = () => {
    const tables = shown.map((curve) => [curve.steps, smoothed(curve.values, weight)]);
    if (hasBand()) return [...tables[0], shown[0].low, shown[0].high];
    return tables.length > 1 ? uPlot.join(tables) : tables[0];
  };
  const options = () => {
    const edge = { stroke: `${colour(0)}66`, width: 1, points: { show: false }, value };
    const band = hasBand() ? [{ label: "lowest", ...edge }, { label: "highest", ...edge }] : [];
    const isLog = logarithmic && isPositive();
    return {
      height,
      padding: [8, null, null, null],
      hooks: { draw: [(plot) => markAttempts(plot, marked)] },
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
      axes: [{ ...axis("step"), incrs: WHOLE, values: (_, found) => marks(found) }, numbers(isLog, title)],
      series: [{ label: "step", value }, ...shown.map((curve, at) => ({ label: curve.label, stroke: colour(at), dash: DASHES[Math.floor(at / LIGHT.length) % DASHES.length], width: 1.5, spanGaps: true, value })), ...band],
      bands: band.length ? [{ series: [3, 2], fill: `${colour(0)}33` }] : [],
    };
  };
  let before = kind();
  const drawn = responsive(title, options, table);
  return {
    ...drawn,
    set(list, begins = []) {
      [shown, marked] = [list, begins];
      if (kind() !== before) { before = kind(); drawn.again(); } else drawn.update();
    },
  };
}

// One point for each of `points`: [[x, y, whether it is complete]]. The words of `ticks` stand for x = 0, 1, 2 … Numbers
// over two orders of magnitude, as learning rates, have a logarithmic axis.
export function scatterPlot(title, xLabel, points, ticks) {
  const name = (at) => (ticks ? ticks[at] ?? "" : number(at));
  const xs = points.map((point) => point[0]), isWide = !ticks && Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) >= 100;
  const range = (_, low, high) => { const room = (high - low) * .05 || 1; return isWide ? [low / 1.3, high * 1.3] : [low - room, high + room]; };
  const isRound = (at) => !isWide || Math.abs(Math.log10(at) % 1) < 1e-6;
  const dots = (label, fill) => ({ label, stroke: colour(0), fill, paths: () => null, points: { show: true, size: 7, fill }, value });
  const ys = (isComplete) => points.map((point) => (point[2] === isComplete ? point[1] : null));
  return responsive(title, () => ({
    height: 260,
    cursor: { drag: { x: true, y: true } },
    scales: { x: { time: false, range, distr: isWide ? 3 : 1 } },
    axes: [{ ...axis(xLabel), values: (_, found) => found.map((at) => (at === null || !isRound(at) ? "" : name(at))), ...(ticks ? { incrs: [1, 2, 5, 10, 50, 100] } : {}) }, numbers()],
    series: [{ label: xLabel, value: (_, at) => (at === null ? "–" : name(at)) }, dots(title, colour(0)), dots("not complete", style("--back"))],
  }), () => [xs, ys(true), ys(false)]);
}

// A line where the values of a later attempt begin, in the page and not on the canvas: it is text, too.
function markAttempts(plot, begins) {
  const { min, max } = plot.scales.x, width = plot.over.clientWidth;
  let free = 0;
  for (const old of plot.over.querySelectorAll(".begin")) old.remove();
  for (const [attempt, step] of begins) {
    const at = Math.max(step, plot.data[0][0]);
    if (at < min || at > max) continue;
    const left = plot.valToPos(at, "x"), isLast = left > width - 70, room = isLast ? left - 70 : left;
    const mark = h("span", { className: isLast ? "begin last" : "begin", title: `attempt ${attempt} begins after step ${step}` }, room >= free ? `attempt ${attempt}` : "");
    if (room >= free) free = room + 70;
    mark.style.left = `${left}px`;
    plot.over.append(mark);
  }
}

// Of the point at the cursor, else of the last one.
const value = (plot, found, series, at) => number(at === null || at === undefined ? plot.data[series]?.findLast((one) => one !== null && one !== undefined) : found, isBytes(plot.series[series].label) ? "bytes" : "");
const isBytes = (name) => /(^|_)bytes$/.test(name);
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);
const axis = (label) => ({ label, labelSize: 18, size: 34, stroke: style("--text"), grid: { stroke: `${style("--line")}88`, width: 1 }, ticks: { stroke: `${style("--line")}88`, size: 5 } });
// As wide as its texts. A logarithmic axis has no common unit.
function numbers(isLog = false, name = "") {
  return { ...axis(), ...(isBytes(name) && !isLog ? { incrs: BINARY } : {}),
    values: (_, found) => (isLog ? found.flatMap((one) => marks([one])) : marks(found, isBytes(name))),
    size(plot, texts) {
      const { font, ticks, gap } = plot.axes[1];
      [plot.ctx.font] = font;
      return Math.ceil(Math.max(24, ...(texts || []).map((text) => plot.ctx.measureText(text).width / devicePixelRatio)) + ticks.size + gap + 4);
    } };
}

// A plot as wide as its place.
function responsive(title, options, table) {
  const read = h("p", { className: "skip", role: "status" });
  const place = h("div", { className: "plot", tabIndex: 0, role: "group", ariaLabel: `${title}. Left and right move the cursor, + and - zoom, 0 shows everything.`, onkeydown }, h("h2", {}, title), read);
  let plot = null, at = 0;
  function onkeydown(event) {
    if (!plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const { min, max } = plot.scales.x, xs = plot.data[0], last = xs.length - 1;
    const step = Math.max(1, Math.round((plot.valToIdx(max) - plot.valToIdx(min)) / 100));
    const move = (by) => { at = Math.max(0, Math.min(last, at + by)); };
    const show = (from, to) => plot.setScale("x", { min: Math.max(xs[0], from), max: Math.min(xs[last], to) });
    const zoom = (factor) => show(xs[at] - (xs[at] - min) * factor, xs[at] + (max - xs[at]) * factor);
    const acts = { ArrowLeft: () => move(-step), ArrowRight: () => move(step), "+": () => zoom(.5), "-": () => zoom(2), 0: () => show(xs[0], xs[last]) };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
    queueMicrotask(() => { // uPlot has applied the new scale by then
      plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: 0 }, true, true);
      read.textContent = [...plot.root.querySelectorAll(".u-series")].map((row) => [...row.children].map((cell) => cell.textContent).join(" ")).join(", ");
    });
  }
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width < 50) return;
    if (plot) plot.setSize({ width, height: plot.height }); else plot = new uPlot({ ...options(), width }, table(), place);
  });
  observer.observe(place);
  const isWhole = () => plot.scales.x.min === plot.data[0][0] && plot.scales.x.max === plot.data[0].at(-1);
  return {
    place,
    update() { plot?.setData(table(), isWhole()); },
    again() {
      if (!plot) return;
      const { width, scales: { x: { min, max } } } = plot, whole = isWhole();
      plot.destroy();
      plot = new uPlot({ ...options(), width }, table(), place);
      if (!whole) plot.setScale("x", { min, max });
    },
    close() { observer.disconnect(); plot?.destroy(); },
  };
}

// Light is low and dark is high (the reverse on a dark page): one hue, readable in grey.
export function heatmap(answer, isBrief = false) {
  const { rows, unit } = answer;
  const columns = rows.length ? rows[0].values.length : 0;
  const all = rows.flatMap((row) => row.values.filter((value) => value !== null));
  const top = unit === "%" ? 100 : unit === "share" ? 1 : Math.max(...all, unit === "cores" ? 1 : 1e-9);
  const canvas = h("canvas", { className: "heatmap", width: Math.max(columns, 1), height: Math.max(rows.length, 1), role: "img", ariaLabel: `${answer.quantity} of ${rows.length} rows over time; the table below has the figures` });
  const hasLabels = rows.length <= 16;
  canvas.style.height = `${hasLabels ? rows.length * 22 : Math.min(rows.length * 18, isBrief ? 300 : 600)}px`;
  const context = canvas.getContext("2d");
  const dark = isDark();
  const pixels = context.createImageData(canvas.width, canvas.height);
  rows.forEach((row, y) => row.values.forEach((value, x) => {
    const at = 4 * (y * columns + x);
    if (value === null) return;
    const share = Math.max(0, Math.min(1, value / top));
    const from = dark ? [24, 34, 48] : [238, 243, 250], to = dark ? [150, 205, 255] : [8, 48, 107];
    for (let colour = 0; colour < 3; colour += 1) pixels.data[at + colour] = Math.round(from[colour] + share * (to[colour] - from[colour]));
    pixels.data[at + 3] = 255;
  }));
  context.putImageData(pixels, 0, 0);
  const told = h("p", { className: "quiet", role: "status" }, "Move over the picture to read a value.");
  const span = answer.end - answer.start;
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(Math.floor((event.clientX - box.left) / box.width * columns), columns - 1);
    const y = Math.min(Math.floor((event.clientY - box.top) / box.height * rows.length), rows.length - 1);
    if (!rows[y] || x < 0) return;
    const moment = clock(answer.start + (x + .5) / columns * span);
    const value = rows[y].values[x];
    told.textContent = `${rows[y].label}, ${moment}: ${value === null ? "no sample" : number(value, unit)}`;
  });
  const side = (text, className) => (hasLabels ? h("ol", { className }, rows.map((row) => h("li", {}, text(row)))) : null);
  const picture = h("div", { className: hasLabels ? "rows" : "" }, side((row) => row.label, "labels"), canvas, side((row) => `mean ${number(Number(row.mean.toPrecision(3)), unit)}`, "means"));
  const times = h("div", { className: "controls quiet" }, h("span", {}, `${clock(answer.start)} to ${clock(answer.end)}`), h("span", {}, "0 ", h("span", { className: "scale" }), ` ${number(top, unit)}`));
  if (isBrief) return h("div", {}, picture, times);
  const table = h("div", { className: "table" }, h("table", {}, h("thead", {}, h("tr", {}, ["Row", "Lowest", "Mean", "Highest"].map((head, at) => h("th", { scope: "col", className: at ? "number" : "" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("td", {}, row.label), [row.low, row.mean, row.high].map((found) => h("td", { className: "number" }, number(found, unit))))))));
  const notes = [answer.one_in > 1 ? `One line in ${answer.one_in} of the samples was read.` : "", answer.left_out ? `${answer.left_out} rows are not shown.` : ""].filter(Boolean).join(" ");
  return h("div", {}, times, picture, told, notes ? h("p", { className: "quiet" }, notes) : null, h("h2", {}, "Figures"), table);
}

// A line for each of `trials` over its parameters, in the order of `names`, and its value. A strong line is a good value.
export function parallelPlot(metric, goal, names, trials, isBest) {
  const apart = 150, top = 26, height = 180, width = apart * (names.length + 1);
  const axes = [...names.map((name) => [name, (trial) => trial.parameters[name]]), [metric, (trial) => trial.value]].map(([name, of], at) => {
    const found = trials.map(of), numeric = found.every((one) => typeof one === "number");
    const words = numeric ? [] : [...new Set(found.map(word))].sort();
    const low = Math.min(...found), high = Math.max(...found), isWide = numeric && low > 0 && high / low >= 100;
    const scaled = isWide ? Math.log : (one) => one;
    const share = (one) => (numeric ? (scaled(one) - scaled(low)) / (scaled(high) - scaled(low) || 1) : words.indexOf(word(one)) / (words.length - 1 || 1));
    const y = (one) => top + height * (1 - share(one));
    return { name, of, share, y, x: apart / 2 + at * apart, ticks: !numeric ? words : new Set(found).size > 6 ? [low, high] : [...new Set(found)] };
  });
  const value = axes.at(-1);
  const good = (trial) => (goal === "minimize" ? 1 - value.share(trial.value) : value.share(trial.value));
  const line = (trial) => drawn("polyline", { points: axes.map(({ x, y, of }) => `${x},${y(of(trial)).toFixed(1)}`).join(" "), class: isBest(trial) ? "best" : "", "stroke-opacity": (.15 + .85 * good(trial)).toFixed(2) }, drawn("title", {}, [trial.id, ...axes.map(({ name, of }) => `${name} ${word(of(trial))}`)].join(", ")));
  const words = (x, y, text, anchor) => drawn("text", { x, y, "text-anchor": anchor }, text.length > 20 ? `${text.slice(0, 19)}…` : text);
  const picture = drawn("svg", { width, height: height + top + 12, role: "img", "aria-label": `A line for each of ${trials.length} trials; the table below has the figures` },
    [...trials].sort((one, other) => isBest(one) - isBest(other) || good(one) - good(other)).map(line),
    axes.map(({ name, x, y, ticks }) => [drawn("line", { x1: x, x2: x, y1: top, y2: top + height }), words(x, 12, name, "middle"), ticks.map((tick) => words(x + 6, y(tick) + 4, word(tick), "start"))]));
  return h("div", { className: "plot parallel table", tabIndex: 0 }, h("h2", {}, "All parameters"), picture);
}

const word = (found) => (typeof found === "string" ? found : typeof found === "number" ? number(found) : JSON.stringify(found));

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  add(element, children);
  return element;
}
