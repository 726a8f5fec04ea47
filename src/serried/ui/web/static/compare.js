// Curves of several runs in the same plots.

import { get, poll } from "./api.js";
import { h, replace } from "./dom.js";
import { curvePlot } from "./plots.js";

export function comparePage(main, words, query, page) {
  const runs = (query.get("runs") || "").split(",").filter(Boolean);
  page.trail([["runs", "#/"], ["compare", null]]);
  const metric = h("select", { onchange: restart }), scale = h("input", { type: "checkbox", onchange: restart }), smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: restart });
  const place = h("div"), list = h("ul", {}, runs.map((run) => h("li", {}, h("a", { href: `#/run/${encodeURIComponent(run)}` }, h("code", {}, run)))));
  replace(main, h("h1", {}, `Compare ${runs.length} runs`), list, h("div", { className: "controls" }, h("label", {}, "Metric", metric), h("label", {}, scale, "logarithmic"), h("label", {}, "Smoothing", smooth)), place);
  let end = () => {}, plot = null, names = [], before = "";
  function restart() {
    end();
    plot?.close();
    plot = null;
    before = "";
    end = poll(async () => {
      const chosen = metric.value || query.get("metric") || null;
      const answers = await Promise.all(runs.map((run) => get("curves", { run, name: chosen })));
      const found = [...new Set(answers.flatMap((answer) => answer.names))].sort();
      if (found.join() !== names.join()) {
        names = found;
        const first = names.includes(chosen) ? chosen : names.find((name) => !name.startsWith("serried/")) || names[0];
        replace(metric, names.map((name) => h("option", { value: name, selected: name === first }, name)));
        if (first && first !== chosen) { restart(); return; }
      }
      const curves = answers.map((answer) => ({ label: answer.run, ...(answer.curves[chosen] || { steps: [], values: [] }) })).filter((curve) => curve.steps.length);
      const text = JSON.stringify(curves);
      if (text === before) return;
      before = text;
      plot?.close();
      plot = curves.length ? curvePlot(chosen, curves, { logarithmic: scale.checked, weight: Number(smooth.value) }) : null;
      replace(place, plot ? plot.place : h("p", {}, "These runs have no metrics yet."));
    }, 5, page.failed);
  }
  restart();
  return () => { end(); plot?.close(); };
}
