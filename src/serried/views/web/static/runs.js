// The list of runs.

import { get, poll, remember } from "./api.js";
import { ago, duration, h, isSelected, replace, seconds, state } from "./dom.js";

const FIRST = 100;
const HEADS = ["", "Run", "Name", "State", "Size", "Progress", "Time", "Note"];

export function runsPage(main, words, query, page) {
  page.trail([["runs", null]]);
  const filter = h("input", { type: "search", placeholder: "name, project, id or state", value: query.get("q") || "", size: 27, oninput: () => { remember({ q: filter.value }); draw(); }, ariaLabel: "Filter" });
  const compare = h("button", { type: "button", disabled: true, onclick: openComparison }, "Compare");
  const count = h("span", { className: "quiet", role: "status" });
  const body = h("tbody");
  const table = h("div", { className: "table" }, h("table", { className: "runs" },
    h("caption", { className: "skip" }, "Runs, the newest first"),
    h("thead", {}, h("tr", {}, HEADS.map((head, at) => h("th", { scope: "col", className: [4, 5].includes(at) ? "wide" : "" }, head || h("span", { className: "skip" }, "Compare"))))), body));
  const empty = h("div", { hidden: true });
  const chosen = new Set();
  const rows = new Map();
  let known = [], isFirst = true;
  replace(main, h("h1", {}, "Runs"), h("div", { className: "controls" }, h("label", {}, "Filter", filter), compare, count), table, empty);

  function openComparison() { location.hash = `#/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`; }

  function draw() {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = known.filter((run) => { const text = [run.id, run.name, run.project, run.experiment, run.state, run.cluster].join(" ").toLowerCase(); return wanted.every((word) => text.includes(word)); });
    const present = new Set(known.map((run) => run.id));
    for (const id of rows.keys()) if (!present.has(id)) { rows.delete(id); chosen.delete(id); }
    const minute = Math.floor(Date.now() / 60000);
    const lines = shown.map((run) => {
      const text = JSON.stringify(run) + (run.ended ? minute : Date.now());
      const before = rows.get(run.id);
      if (before && before.text === text) return before.line;
      const line = before?.line || h("tr");
      if (before && isSelected(line)) return line;
      const at = [...line.querySelectorAll("a, input")].indexOf(document.activeElement);
      replace(line, cells(run));
      if (at >= 0) line.querySelectorAll("a, input")[at]?.focus({ preventScroll: true });
      rows.set(run.id, { text, line });
      return line;
    });
    // A row that stays is not moved: it would lose the focus.
    const kept = new Set(lines);
    for (const line of [...body.children]) if (!kept.has(line)) line.remove();
    lines.forEach((line, at) => { if (body.children[at] !== line) body.insertBefore(line, body.children[at] || null); });
    table.hidden = !shown.length;
    empty.hidden = Boolean(shown.length) || isFirst;
    count.textContent = known.length ? `${shown.length} of ${known.length}` : "";
    replace(empty, known.length ? h("p", {}, "No run matches the filter.") : [h("p", {}, "You have no runs yet. Submit one:"), h("pre", {}, "serried submit -- python train.py")]);
  }

  function cells(run) {
    const box = h("input", { type: "checkbox", checked: chosen.has(run.id), ariaLabel: `Compare ${run.id}`, onchange: () => { if (box.checked) chosen.add(run.id); else chosen.delete(run.id); compare.disabled = chosen.size < 2; } });
    const address = run.sweep ? `#/sweep/${encodeURIComponent(run.id)}` : `#/run/${encodeURIComponent(run.id)}`;
    return [
      h("td", {}, box),
      h("td", {}, h("a", { href: address }, h("code", {}, run.id))),
      h("td", { className: "name" }, run.name, run.project ? h("div", { className: "quiet" }, run.project) : null),
      h("td", {}, state(run.state)),
      h("td", { className: "wide size" }, size(run)),
      h("td", { className: "wide" }, progress(run)),
      h("td", { className: "time" }, time(run)),
      h("td", { className: "note" }, [run.message, run.stale_since && !run.doing ? `as of ${ago(seconds(run.stale_since))}` : ""].filter(Boolean).join(", "))];
  }

  return poll(async () => {
    const answer = await get("runs", isFirst ? { limit: FIRST } : {});
    const more = isFirst && answer.total > answer.runs.length;
    isFirst = false;
    known = answer.runs;
    page.notice(answer.notice);
    draw();
    if (more) { known = (await get("runs")).runs; draw(); }
  }, 3, page.failed);
}

export function size(run) {
  if (!run.nodes) return "";
  const gpus = (run.nodes + run.spare_nodes) * run.gpus_per_node;
  return `${run.nodes}×${run.ranks_per_node}${gpus ? `, ${gpus} GPU${gpus > 1 ? "s" : ""}` : ""}`;
}

export function progress(run) {
  if (run.tasks) return Object.entries(run.tasks).map(([name, count]) => `${count} ${name.toLowerCase()}`).join(", ");
  return [run.total_steps ? h("progress", { max: run.total_steps, value: Math.min(run.step, run.total_steps), ariaLabel: "steps" }) : null, h("div", {}, run.doing)];
}

function time(run) {
  if (run.seconds !== undefined || run.ended) return [duration(run.seconds), h("div", { className: "quiet" }, run.ended ? ago(seconds(run.ended)) : "")];
  const since = run.started || run.created;
  return since ? duration(Date.now() / 1000 - seconds(since)) : "";
}
