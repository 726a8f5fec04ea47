// Several runs: how they ended, the settings that differ, and one metric of all in the same plot.

import { get, poll, remember } from "./api.js";
import { duration, fill, h, isSelected, number, replace, state } from "./dom.js";
import { curvePlot } from "./plots.js";

export function comparePage(main, words, query, page) {
  const runs = (query.get("runs") || "").split(",").filter(Boolean);
  page.trail([["runs", "#/"], ["compare", null]]);
  if (!runs.length) { replace(main, h("h1", {}, "Compare"), h("p", {}, "Choose runs by the boxes in ", h("a", { href: "#/" }, "the list"), ".")); return () => {}; }
  const metric = h("select", { onchange: restart }), scale = h("input", { type: "checkbox", onchange: redraw }), smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: redraw });
  const table = h("div", { className: "table" }), place = h("div"), note = h("p", { className: "quiet" });
  replace(main, h("h1", {}, `Compare ${runs.length} runs`), table, h("div", { className: "controls" }, h("label", {}, "Metric", metric), h("label", {}, scale, "logarithmic"), h("label", {}, "Smoothing", smooth)), note, place);
  let end = () => {}, plot = null, curves = [], chosen = query.get("metric"), found = null;

  function redraw() { plot?.close(); plot = null; draw(); }
  function draw() {
    const list = curves.filter((curve) => curve.steps.length);
    const without = curves.filter((curve) => !curve.steps.length).map((curve) => curve.label);
    note.textContent = !list.length ? "These runs have no metrics yet." : without.length ? `Without ${chosen}: ${without.join(", ")}` : "";
    if (!list.length) { plot?.close(); plot = null; place.replaceChildren(); }
    else if (plot) plot.set(list);
    else { plot = curvePlot(chosen, list, { logarithmic: scale.checked, weight: Number(smooth.value) }); place.replaceChildren(plot.place); }
  }
  function restart() {
    if (metric.value && metric.value !== chosen) { chosen = metric.value; remember({ runs: runs.join(), metric: chosen }); plot?.close(); plot = null; }
    end();
    end = poll(async () => {
      const answers = await Promise.all(runs.map((run) => get("curves", { run, name: chosen })));
      const names = [...new Set(answers.flatMap((answer) => answer.names))];
      if (!names.includes(chosen) && names.length) { chosen = names.find((name) => !name.startsWith("serried/")) || names[0]; fill(metric, names, chosen); restart(); return; }
      fill(metric, names, chosen);
      curves = answers.map((answer, at) => ({ label: runs[at], steps: [], values: [], ...answer.curves[chosen] }));
      draw();
      if (found) replaceTable();
    }, 5, page.failed);
  }
  function replaceTable() {
    if (isSelected(table)) return;
    const last = Object.fromEntries(curves.map((curve) => [curve.label, curve.values.at(-1)]));
    const each = (show) => found.runs.map((run, at) => h("td", {}, show(run, at)));
    const rows = [["Name", (run) => run.name], ["State", (run) => state(run.state)], ["Time", (run) => (run.seconds === undefined ? "" : duration(run.seconds))],
      ...(found.runs.some((run) => run.doing) ? [["Progress", (run) => run.doing || ""]] : []),
      ...(chosen ? [[`Last ${chosen}`, (_, at) => number(last[runs[at]])]] : []),
      ...Object.entries(found.settings).map(([name, values]) => [name, (_, at) => setting(values[at])])];
    replace(table, h("table", { className: "sides" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Run"), found.runs.map((run) => h("th", { scope: "col" }, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, h("code", {}, run.id)))))),
      h("tbody", {}, rows.map(([name, show]) => h("tr", {}, h("th", { scope: "row" }, name), each(show))))),
      Object.keys(found.settings).length || runs.length < 2 ? null : h("p", { className: "quiet" }, "The settings of these runs do not differ."));
  }
  const endRuns = poll(async () => { found = await get("compare", { run: runs }); page.notice(found.notice); replaceTable(); }, 5, page.failed);
  restart();
  return () => { end(); endRuns(); plot?.close(); };
}

const setting = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
