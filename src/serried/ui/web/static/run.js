// The page of a run or of one task.

import { get, poll } from "./api.js";
import { duration, h, number, replace, seconds, state } from "./dom.js";
import { curvePlot, heatmap } from "./plots.js";
import { metrics, progress, size } from "./runs.js";

const TABS = { overview: ["Overview", overview], curves: ["Curves", curves], usage: ["Usage", usage], report: ["Report", report], logs: ["Logs", logs], plan: ["Plan", plan] };
const MOST_LINES = 5000;

export function runPage(main, [id, tab = "overview"], query, page) {
  const heading = h("h1", {}, id), facts = h("p", {}), body = h("div");
  const address = (name) => `#/run/${encodeURIComponent(id)}/${name}`;
  const current = Object.hasOwn(TABS, tab) ? tab : "overview";
  page.trail([["runs", "#/"], [id, null]]);
  replace(main, heading, facts,
    h("nav", { className: "tabs", ariaLabel: "Parts of the run" }, Object.entries(TABS).map(([name, [text]]) => h("a", { href: address(name), "aria-current": name === current ? "page" : null }, text))), body);
  const endTab = TABS[current][1](body, id, query, page);
  const endHead = poll(async () => {
    const run = await get("run", { run: id });
    replace(heading, run.name, " ", h("code", { className: "quiet" }, run.id));
    replace(facts, state(run.state), " ", [size(run), run.cluster, run.message].filter(Boolean).join(" · "));
    endTab.update?.(run);
  }, 3, (error) => { page.failed(error); if (error && error.status) replace(facts, h("span", { className: "error" }, error.message)); });
  return () => { endHead(); endTab.close?.(); };
}

function overview(body) {
  let before = "";
  return { update(run) {
    const text = JSON.stringify(run);
    if (text === before && run.ended) return;
    before = text;
    const now = run.progress || {};
    const pairs = [
      ["progress", run.progress ? progress(run) : null],
      ["metrics", metrics(now)],
      ["last step", now.step_age !== undefined && now.step_age !== null ? `${duration(now.step_age)} ago` : null],
      ["speed", now.samples_per_second ? `${number(now.samples_per_second)} samples/s` : now.steps_per_second ? `${number(now.steps_per_second)} steps/s` : null],
      ["GPU busy", now.gpu_busy !== undefined && now.gpu_busy !== null ? number(now.gpu_busy, "%") : null],
      ["time left", now.seconds_left ? duration(now.seconds_left) : null],
      ["ran", run.seconds !== null ? duration(run.seconds) : run.started ? duration(Date.now() / 1000 - seconds(run.started)) : null],
      ["limit", run.limit_seconds ? duration(run.limit_seconds) : null],
      ["project", [run.project, run.experiment].filter(Boolean).join(", experiment ")],
      ["job", run.job], ["nodes", (run.node_names || []).join(", ")], ["command", run.command ? h("code", {}, run.command) : null],
      ["waits for", run.reason], ["exit code", run.ended && run.exit_code !== null ? run.exit_code : null],
      ["tasks", run.task_counts ? Object.entries(run.task_counts).map(([name, count]) => `${count} ${name.toLowerCase()}`).join(", ") : null],
      ["directory", run.directory ? h("code", {}, run.directory) : null],
    ];
    const steps = run.timeline || [];
    replace(body,
      (run.warnings || []).map((warning) => h("p", { className: "warning" }, warning.message)),
      h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      run.ended && run.state !== "COMPLETED" ? h("p", {}, "In a terminal: ", h("code", {}, `serried why ${run.id}`)) : null,
      h("h2", {}, "Timeline"),
      steps.length ? h("dl", {}, steps.map((event) => [h("dt", {}, new Date(event.time).toLocaleString()), h("dd", {}, event.event)])) : h("p", { className: "quiet" }, "Nothing yet."),
      run.checkpoints?.length ? [h("h2", {}, "Checkpoints"), h("ul", {}, run.checkpoints.map((one) => h("li", {}, h("code", {}, one.path), " ", h("span", { className: "quiet" }, new Date(one.changed * 1000).toLocaleString()))))] : null);
  } };
}


function curves(body, id, query, page) {
  const rank = h("select", { onchange: restart }), scale = h("input", { type: "checkbox", onchange: redraw }), smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: redraw });
  const choices = h("fieldset", { className: "choices" }), place = h("div", { className: "plots" }), note = h("p", { className: "quiet" });
  replace(body, h("div", { className: "controls" }, h("label", {}, "Rank", rank), h("label", {}, scale, "logarithmic"), h("label", {}, "Smoothing", smooth)), choices, note, place);
  const shown = new Set(query.getAll("metric"));
  const plots = new Map();
  let names = [], last = {}, end = () => {};

  function redraw() {
    for (const plot of plots.values()) plot.close();
    plots.clear();
    place.replaceChildren();
    draw();
  }
  function draw() {
    for (const [name, plot] of plots) if (!shown.has(name)) { plot.close(); plot.place.remove(); plots.delete(name); }
    for (const name of names.filter((one) => shown.has(one) && last[one]?.steps.length)) {
      const list = [{ label: name, ...last[name] }];
      if (plots.has(name)) plots.get(name).set(list);
      else { const plot = curvePlot(name, list, { logarithmic: scale.checked, weight: Number(smooth.value) }); plots.set(name, plot); place.append(plot.place); }
    }
  }
  function offer() {
    replace(choices, h("legend", {}, "Metrics"), names.map((name) => {
      const box = h("input", { type: "checkbox", checked: shown.has(name), onchange: () => { if (box.checked) shown.add(name); else shown.delete(name); restart(); } });
      return h("label", {}, box, " ", name);
    }));
  }
  function restart() {
    end();
    end = poll(async () => {
      const answer = await get("curves", { run: id, rank: rank.value || 0, name: [...shown] });
      if (answer.names.join() !== names.join()) {
        const isFirst = !names.length;
        names = answer.names;
        if (isFirst && !shown.size) { for (const name of [...names.filter((one) => !one.startsWith("serried/")), ...names].slice(0, 4)) shown.add(name); offer(); restart(); return; }
        offer();
      }
      note.textContent = names.length ? "Drag over a plot to zoom; double-click to see everything." : "No metrics yet. run.log() of serried.train writes them, and metric.from reads those of other programs.";
      last = answer.curves;
      draw();
    }, 5, page.failed);
  }
  restart();
  return {
    update(run) {
      const ranks = run.metric_ranks?.length ? run.metric_ranks : [0];
      if (rank.options.length !== ranks.length) replace(rank, ranks.map((number) => h("option", { value: number, selected: String(number) === rank.value }, String(number))));
    },
    close() { end(); for (const plot of plots.values()) plot.close(); },
  };
}

function usage(body, id, query, page) {
  const quantity = h("select", { onchange: restart }), place = h("div");
  replace(body, h("div", { className: "controls" }, h("label", {}, "Quantity", quantity)), place);
  let end = () => {}, before = "";
  const wanted = query.get("quantity");
  function restart() {
    end();
    before = "";
    end = poll(async () => {
      const chosen = quantity.value || wanted || "busy";
      const answer = await get("heatmap", { run: id, quantity: chosen });
      const present = answer.present || [];
      if (quantity.options.length !== present.length) {
        replace(quantity, present.map((name) => h("option", { value: name, selected: name === chosen }, name.replaceAll("_", " "))));
        if (present.length && !present.includes(chosen)) { quantity.value = present[0]; restart(); return; }
      }
      const text = JSON.stringify(answer);
      if (text === before) return;
      before = text;
      replace(place, answer.rows.length ? heatmap(answer) : h("p", {}, "No samples yet. They appear about half a minute after the ranks start."));
    }, 10, page.failed);
  }
  restart();
  return { close: () => end() };
}

function report(body, id, query, page) {
  const place = h("pre", { tabIndex: 0 }, "Loading …");
  replace(body, place);
  return { close: poll(async () => {
    const answer = await get("report", { run: id });
    const text = answer.lines.join("\n");
    if (place.textContent !== text) place.textContent = text;
  }, 15, page.failed) };
}

function logs(body, id, query, page) {
  const rank = h("select", { onchange: restart }), attempt = h("select", { onchange: restart }), follow = h("input", { type: "checkbox", checked: true });
  const text = document.createElement("span"), rest = h("span", { className: "rest" });
  const box = h("pre", { className: "log", tabIndex: 0, role: "log", ariaLabel: "Output" }, text, rest);
  const note = h("p", { className: "quiet" });
  replace(body, h("div", { className: "controls" }, h("label", {}, "Rank", rank), h("label", {}, "Attempt", attempt), h("label", {}, follow, "follow")), note, box);
  let end = () => {}, next = null, lines = 0;
  function restart() {
    end();
    next = null;
    lines = 0;
    text.replaceChildren();
    rest.textContent = "";
    end = poll(async () => {
      const answer = await get("log", { run: id, rank: rank.value || query.get("rank") || 0, attempt: attempt.value || null, offset: next });
      if (answer.next < (next ?? 0)) text.replaceChildren();
      next = answer.next;
      note.textContent = answer.is_tail ? `The last lines of ${number(answer.size, "bytes")}.` : "";
      for (const line of answer.lines) { text.append(document.createTextNode(`${line}\n`)); lines += 1; }
      while (lines > MOST_LINES) { text.firstChild.remove(); lines -= 1; }
      rest.textContent = answer.rest;
      if (follow.checked) box.scrollTop = box.scrollHeight;
    }, 1, page.failed);
  }
  restart();
  return {
    update(run) {
      fill(rank, run.ranks || []);
      fill(attempt, [...(run.attempts || [])].reverse());
    },
    close: () => end(),
  };
}

function fill(select, values) {
  if ([...select.options].map((option) => option.value).join() === values.join()) return;
  const chosen = select.value;
  replace(select, values.map((value) => h("option", { value, selected: String(value) === chosen }, String(value))));
}

function plan(body, id, query, page) {
  const place = h("div");
  replace(body, place);
  let done = "";
  return { async update(run) {
    const names = Object.keys(run.files || {});
    if (names.join() === done) return;
    done = names.join();
    const texts = [];
    for (const name of names) {
      try { texts.push(await get("file", { run: id, name })); } catch (error) { page.failed(error); }
    }
    replace(place, texts.map((one, at) => h("details", { open: at === 0 }, h("summary", {}, h("strong", {}, one.name), " ", h("code", { className: "quiet" }, one.path)), h("pre", { tabIndex: 0 }, one.name === "plan" ? pretty(one.text) : one.text, one.is_cut ? "\n… cut here" : ""))));
  } };
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
