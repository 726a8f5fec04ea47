// The trials of a sweep: a table that sorts by any column, and the metric by one parameter.

import { get, poll, remember } from "./api.js";
import { duration, fill, h, isSelected, number, replace, state } from "./dom.js";
import { parallelPlot, scatterPlot } from "./plots.js";

export function sweepPage(main, [id], query, page) {
  page.trail([["runs", "#/"], [`sweep ${id}`, null]]);
  const facts = h("p", {}), place = h("div", { className: "table" }), picture = h("div", { className: "pictures" });
  const parameter = h("select", { onchange: choose }), choice = h("div", { className: "controls", hidden: true }, h("label", {}, "Parameter", parameter));
  replace(main, h("h1", {}, "Sweep ", h("code", {}, id)), facts, choice, picture, place);
  let before = "", answer = null, order = query.get("sort") || "", plot = null;

  function choose() { remember({ sort: order, parameter: parameter.value }); drawPicture(); drawTable(); }
  const isBest = (trial) => Boolean(answer.best) && Object.entries(answer.best).every(([name, value]) => JSON.stringify(trial.parameters?.[name]) === JSON.stringify(value));
  function drawPicture() {
    const measured = answer.trials.filter((trial) => typeof trial.value === "number" && trial.parameters?.[parameter.value] !== undefined);
    const found = measured.map((trial) => trial.parameters[parameter.value]);
    const words = found.every((value) => typeof value === "number") ? null : [...new Set(found.map(show))].sort();
    const points = measured.map((trial, at) => [words ? words.indexOf(show(found[at])) : found[at], trial.value, trial.state === "COMPLETED"]).sort((one, other) => one[0] - other[0]);
    plot?.close();
    plot = points.length > 1 ? scatterPlot(answer.metric, parameter.value, points, words) : null;
    const names = [...parameter.options].map((option) => option.value);
    const whole = answer.trials.filter((trial) => typeof trial.value === "number" && names.every((name) => trial.parameters?.[name] !== undefined));
    replace(picture, plot?.place, whole.length > 1 && names.length > 1 ? parallelPlot(answer.metric, answer.goal, names, whole, isBest) : null);
  }
  function drawTable() {
    const names = [...parameter.options].map((option) => option.value);
    const columns = [["Trial", (trial) => trial.trial], ["State", (trial) => trial.state], [answer.metric || "Value", (trial) => trial.value],
      ...names.map((name) => [name, (trial) => trial.parameters?.[name]]), ["Time", (trial) => trial.seconds]];
    const by = columns.find(([name]) => name === order.replace(/^-/, ""));
    const trials = by ? [...answer.trials].sort((one, other) => compared(by[1](one), by[1](other), order.startsWith("-"))) : answer.trials;
    const head = ([name]) => h("th", { scope: "col", ariaSort: by?.[0] === name ? (order.startsWith("-") ? "descending" : "ascending") : null },
      h("button", { type: "button", className: "sort", onclick: () => { order = order === name ? `-${name}` : name; choose(); [...place.querySelectorAll("button")].find((one) => one.dataset.name === name)?.focus(); }, "data-name": name }, name));
    replace(place, h("table", {}, h("caption", { className: "skip" }, "Trials"),
      h("thead", {}, h("tr", {}, columns.map(head), h("th", { scope: "col" }, "Note"))),
      h("tbody", {}, trials.map((trial) => h("tr", { className: isBest(trial) ? "best" : "" },
        h("td", {}, h("a", { href: `#/run/${encodeURIComponent(trial.id)}` }, h("code", {}, trial.id))),
        h("td", {}, state(trial.state)),
        h("td", {}, number(trial.value)),
        names.map((name) => h("td", {}, show(trial.parameters?.[name]))),
        h("td", {}, trial.seconds === null ? "" : duration(trial.seconds)),
        h("td", { className: "note" }, trial.message || ""))))));
  }

  const end = poll(async () => {
    answer = await get("sweep", { run: id });
    const text = JSON.stringify(answer);
    if (text === before || isSelected(place)) return;
    before = text;
    fill(parameter, [...new Set(answer.trials.flatMap((trial) => Object.keys(trial.parameters || {})))], query.get("parameter"));
    choice.hidden = !answer.metric || !parameter.options.length;
    replace(facts, `${answer.trials.length} trials, ${answer.metric ? `${answer.goal} ${answer.metric}` : "without a metric"} · `, h("a", { href: `#/run/${encodeURIComponent(id)}` }, "the run of the sweep"));
    drawPicture();
    drawTable();
  }, 5, page.failed);
  return () => { end(); plot?.close(); };
}

// Missing values come last in either direction.
function compared(one, other, isReversed) {
  const isMissing = (value) => value === null || value === undefined;
  if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
  const order = typeof one === "number" && typeof other === "number" ? one - other : show(one).localeCompare(show(other));
  return isReversed ? -order : order;
}

const show = (value) => (value === undefined ? "" : typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));
