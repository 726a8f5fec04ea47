// The trials of a sweep.

import { get, poll } from "./api.js";
import { duration, h, number, replace, state } from "./dom.js";

export function sweepPage(main, [id], query, page) {
  page.trail([["runs", "#/"], [`sweep ${id}`, null]]);
  const facts = h("p", {}), place = h("div", { className: "table" });
  replace(main, h("h1", {}, "Sweep ", h("code", {}, id)), facts, place);
  let before = "";
  return poll(async () => {
    const answer = await get("sweep", { run: id });
    const text = JSON.stringify(answer);
    if (text === before) return;
    before = text;
    const names = [...new Set(answer.trials.flatMap((trial) => Object.keys(trial.parameters || {})))];
    const best = JSON.stringify(answer.best);
    replace(facts, `${answer.trials.length} trials, ${answer.goal || ""} ${answer.metric || "no metric"} · `, h("a", { href: `#/run/${encodeURIComponent(id)}` }, "the run of the sweep"));
    replace(place, h("table", {},
      h("thead", {}, h("tr", {}, ["Trial", "State", answer.metric || "Value", ...names, "Time", "Note"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, answer.trials.map((trial) => h("tr", { className: answer.best && JSON.stringify(trial.parameters) === best ? "best" : "" },
        h("td", {}, h("a", { href: `#/run/${encodeURIComponent(trial.id)}` }, h("code", {}, trial.id))),
        h("td", {}, state(trial.state)),
        h("td", { className: "number" }, number(trial.value)),
        names.map((name) => h("td", {}, show(trial.parameters?.[name]))),
        h("td", {}, trial.seconds === null ? "" : duration(trial.seconds)),
        h("td", { className: "note" }, trial.message || ""))))));
  }, 5, page.failed);
}

const show = (value) => (value === undefined ? "" : typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));
