// The page of a run or of one task.

import { get, poll, remember } from "./api.js";
import { clock, duration, fill, h, isSelected, number, replace, seconds, state } from "./dom.js";
import { curvePlot, heatmap } from "./plots.js";

const TABS = { overview: ["Overview", overview], curves: ["Curves", curves], usage: ["Usage", usage], report: ["Report", report], logs: ["Logs", logs], plan: ["Plan", plan] };
const OF_ARRAYS = ["overview", "plan"];
const MOST_LINES = 5000;

export function runPage(main, [id, tab = "overview"], query, page) {
  const heading = h("h1", {}, id), facts = h("p", {}), body = h("div");
  const address = (name) => `#/run/${encodeURIComponent(id)}/${name}`;
  const current = Object.hasOwn(TABS, tab) ? tab : "overview";
  const [parent, task] = id.split("/");
  page.trail([["runs", "#/"], ...(task ? [[parent, `#/run/${encodeURIComponent(parent)}`]] : []), [task || id, null]]);
  const links = Object.entries(TABS).map(([name, [text]]) => h("a", { href: address(name), "aria-current": name === current ? "page" : null }, text));
  const tabs = h("nav", { className: "tabs", ariaLabel: "Parts of the run" }, links);
  replace(main, heading, facts, tabs, body);
  const shown = TABS[current][1](body, id, query, page);
  let before = "", isKnown = false;
  const endHead = poll(async () => {
    const run = await get("run", { run: id });
    isKnown = true;
    page.notice(run.notice);
    const isArray = Boolean(run.links);
    Object.keys(TABS).forEach((name, at) => { links[at].hidden = isArray && !OF_ARRAYS.includes(name); });
    const text = [run.name, run.state, run.message].join();
    if (text !== before) {
      before = text;
      replace(heading, run.name, " ", h("code", { className: "quiet" }, run.id));
      replace(facts, state(run.state), " ", [size(run), run.cluster, run.message].filter(Boolean).join(" · "));
    }
    if (isArray && !OF_ARRAYS.includes(current)) { shown.close?.(); replace(body, h("p", {}, "Each task has its own: the overview lists the tasks.")); } else shown.update?.(run);
  }, 3, (error) => {
    page.failed(error);
    tabs.hidden = body.hidden = !isKnown && [400, 404].includes(error?.status);
    if (!error?.status) return;
    before = "";
    replace(facts, h("span", { className: "error" }, error.message));
  });
  return () => { endHead(); shown.close?.(); };
}

// Overview: figures of a live run first, then two columns, progress and facts.
const FIGURES = ["progress", "speed", "time left", "GPUs", "CPUs", "memory"];
const BUSY = { busy: "GPUs busy", rank_cpu: "CPU cores in use by each rank", node_cpu: "CPU cores in use" };
const MOST_TAIL = 12, MOST_CHECKPOINTS = 8;

function overview(body, id, query, page) {
  const top = h("div"), curve = h("section", { hidden: true }), busy = h("section", { hidden: true }), output = h("section", { hidden: true });
  const ofTasks = h("section", { hidden: true }), side = h("div");
  const columns = h("div", {}, h("div", {}, ofTasks, curve, busy, output), side);
  const tail = h("pre", { className: "tail", tabIndex: 0, ariaLabel: "Last lines of the output" });
  const link = (tab, text) => h("a", { href: `#/run/${encodeURIComponent(id)}/${tab}` }, text);
  let before = "", run = null, plot = null, metric = null, quantity = "busy", hasBusy = false, log = { lines: [], next: null, name: null, attempt: null }, end = () => {};
  replace(body, top, columns);

  async function look() {
    await drawCurve();
    if (!hasBusy || !run.ended) { await drawBusy(); hasBusy = true; }
    await drawOutput();
    columns.className = [ofTasks, curve, busy, output].every((one) => one.hidden) ? "" : "overview";
  }
  async function drawCurve() {
    const rank = run.metric_ranks[0] ?? 0;
    let answer = await get("curves", { run: id, rank, name: metric });
    const [first] = answer.names;
    if (!first || first.startsWith("serried/")) return;
    if (first !== metric) { metric = first; plot?.close(); plot = null; answer = await get("curves", { run: id, rank, name: metric }); }
    const list = [{ label: metric, ...answer.curves[metric] }];
    if (!list[0].steps?.length) return;
    if (plot) { plot.set(list, answer.begins); return; }
    plot = curvePlot(metric, list, { begins: answer.begins, height: 250 });
    curve.hidden = false;
    replace(curve, plot.place, answer.names.length > 1 ? h("p", { className: "more" }, link("curves", `All ${answer.names.length} curves`)) : null);
  }
  async function drawBusy() {
    let answer = await get("heatmap", { run: id, quantity });
    const known = Object.keys(BUSY).find((name) => answer.present.includes(name));
    if (known && known !== quantity) { quantity = known; answer = await get("heatmap", { run: id, quantity }); }
    busy.hidden = !known || !answer.rows.length;
    if (!busy.hidden && !isSelected(busy)) replace(busy, h("h2", {}, BUSY[quantity], link("usage", "Usage")), heatmap(answer, true));
  }
  async function drawOutput() {
    const name = run.failed_log ?? run.ranks[0];
    if (name === undefined) return;
    if (name !== log.name) log = { lines: [], next: null, name, attempt: null };
    const answer = await get("log", { run: id, rank: name, offset: log.next });
    if (answer.attempt !== log.attempt && log.attempt !== null) { log = { lines: [], next: null, name: null, attempt: null }; return; }
    const lines = [...(answer.is_new ? [] : log.lines), ...answer.lines].slice(-MOST_TAIL);
    Object.assign(log, { lines, next: answer.next, attempt: answer.attempt });
    const text = [...lines, answer.rest].filter((line, at) => line || at < lines.length).join("\n");
    if (!output.firstChild || output.dataset.name !== name) {
      output.dataset.name = name;
      replace(output, h("h2", {}, name === "script" ? "Output of the script" : `Output of rank ${name}`, link(`logs?rank=${encodeURIComponent(name)}`, "Logs")), tail);
    }
    output.hidden = false;
    if (tail.textContent !== (text || "No output yet.") && !isSelected(tail)) { tail.textContent = text || "No output yet."; tail.scrollTop = tail.scrollHeight; }
  }

  return { update(now) {
    const isFirst = !run;
    run = now;
    if (isFirst && !run.links) end = poll(look, 3, page.failed);
    const text = JSON.stringify(run);
    if ((text === before && run.ended) || isSelected(top) || isSelected(side) || isSelected(ofTasks)) return;
    before = text;
    const open = new Set([...ofTasks.querySelectorAll("details[open]")].map((one) => one.dataset.state));
    const isFigure = ([name, value]) => FIGURES.includes(name) && value;
    const ran = run.seconds ?? (run.started && !run.ended ? Date.now() / 1000 - seconds(run.started) : null);
    const pairs = [
      ["waits for", run.waits_for], ["ran", ran === null ? null : duration(ran)], ["limit", run.limit_seconds ? duration(run.limit_seconds) : null],
      ...run.facts.filter((pair) => !isFigure(pair)),
      ["project", [run.project, run.experiment].filter(Boolean).join("/")],
      ["command", h("code", {}, run.plan.find(([name]) => name === "command")?.[1] ?? "–")],
      ["job", run.job], ["nodes", run.node_names.join(", ")],
      ["exit code", run.ended && run.exit_code !== null ? run.exit_code : null],
      ["directory", run.directory ? h("code", {}, run.directory) : null],
    ];
    const figures = run.facts.filter(isFigure);
    replace(top,
      run.warnings.map((warning) => h("p", { className: "warning" }, warning.message)),
      run.ended && run.state !== "COMPLETED" ? h("p", {}, "In a terminal: ", h("code", {}, `serried why ${run.id}`)) : null,
      run.total_steps && !run.ended ? h("progress", { className: "steps", max: run.total_steps, value: Math.min(run.step, run.total_steps), ariaLabel: "steps" }) : null,
      figures.length ? h("dl", { className: "figures" }, figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))) : null);
    ofTasks.hidden = !run.links;
    if (run.links) { replace(ofTasks, h("h2", {}, "Tasks"), Object.entries(run.links).map(([name, of]) => tasks(run, name, of, open.has(name)))); columns.className = "overview"; }
    const kept = run.checkpoints, further = kept.length - MOST_CHECKPOINTS;
    replace(side,
      list(pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")),
      h("h2", {}, "Timeline"),
      run.timeline.length ? list(run.timeline.map((event) => [clock(seconds(event.time)), event.event])) : h("p", { className: "quiet" }, "Nothing yet."),
      kept.length ? [h("h2", {}, "Checkpoints"), list(kept.slice(0, MOST_CHECKPOINTS).map((one) => [clock(one.changed), h("code", { title: one.path }, one.name)])),
        further > 0 ? h("p", { className: "quiet" }, `and ${further} earlier`) : null] : null);
  }, close() { end(); plot?.close(); } };
}

const list = (entries) => h("dl", {}, entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

function size(run) {
  const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`, { nodes } = run;
  return nodes ? [counted(nodes, "node"), counted(nodes * run.ranks_per_node, "rank"), ...(run.gpus_per_node ? [counted((nodes + run.spare_nodes) * run.gpus_per_node, "GPU")] : [])].join(", ") : "";
}

function tasks(run, name, of, isOpen) {
  const links = of.tasks.map((task) => h("a", { href: `#/run/${encodeURIComponent(`${run.id}/${task}`)}` }, String(task)));
  const more = of.count - of.tasks.length;
  const details = h("details", { open: isOpen || of.count <= 20 }, h("summary", {}, state(name), ` ${of.count}`), h("div", { className: "choices" }, links, more ? `and ${more} more` : null));
  details.dataset.state = name;
  return details;
}

function curves(body, id, query, page) {
  const rank = h("select", { onchange: () => { wantedRank = rank.value; choose(); } }), scale = h("input", { type: "checkbox", onchange: redraw }), smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: redraw });
  const choices = h("fieldset", { className: "choices" }), place = h("div", { className: "plots" }), note = h("p", { className: "quiet" });
  replace(body, h("div", { className: "controls" }, h("label", {}, "Rank", rank), h("label", {}, scale, "logarithmic"), h("label", {}, "Smoothing", smooth)), choices, note, place);
  const shown = new Set(query.getAll("metric"));
  const plots = new Map();
  let names = [], last = {}, begins = [], end = () => {}, wantedRank = query.get("rank");

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
      if (plots.has(name)) plots.get(name).set(list, begins);
      else { const plot = curvePlot(name, list, { begins, logarithmic: scale.checked, weight: Number(smooth.value) }); plots.set(name, plot); place.append(plot.place); }
    }
  }
  function choose() { remember({ metric: [...shown], rank: wantedRank }); restart(); }
  function offer() {
    replace(choices, h("legend", {}, "Metrics"), names.map((name) => {
      const box = h("input", { type: "checkbox", checked: shown.has(name), onchange: () => { if (box.checked) shown.add(name); else shown.delete(name); choose(); } });
      return h("label", {}, box, " ", name);
    }));
  }
  function restart() {
    end();
    let ended = false;
    const stop = poll(async () => {
      const answer = await get("curves", { run: id, rank: wantedRank, name: [...shown] });
      if (ended) return;
      if (answer.names.join() !== names.join()) {
        const isFirst = !names.length;
        names = answer.names;
        if (isFirst && !shown.size) { const own = names.filter((one) => !one.startsWith("serried/")); for (const name of (own.length ? own : names).slice(0, 4)) shown.add(name); offer(); restart(); return; }
        offer();
      }
      note.textContent = names.length ? "Drag over a plot to zoom; double-click to see everything. By keyboard: arrows, +, - and 0. A long curve is a mean, with a band from the lowest to the highest value." : "No metrics yet. run.log(loss=…) of serried.train writes them, and metric.from finds those that other programs print.";
      last = answer.curves;
      begins = answer.begins;
      draw();
    }, 5, page.failed);
    end = () => { ended = true; stop(); };
  }
  restart();
  return {
    update(run) { fill(rank, run.metric_ranks.length ? run.metric_ranks : [0], wantedRank); },
    close() { end(); for (const plot of plots.values()) plot.close(); },
  };
}

function usage(body, id, query, page) {
  const quantity = h("select", { onchange: choose }), attempt = h("select", { onchange: choose }), place = h("div");
  replace(body, h("div", { className: "controls" }, h("label", {}, "Quantity", quantity), h("label", {}, "Attempt", attempt)), place);
  let end = () => {}, before = "", wanted = { quantity: query.get("quantity") || "busy", attempt: query.get("attempt") };
  function choose() {
    wanted = { quantity: quantity.value || wanted.quantity, attempt: newestOr(attempt) };
    remember(wanted);
    restart();
  }
  function restart() {
    end();
    before = "";
    end = poll(async () => {
      const answer = await get("heatmap", { run: id, ...wanted });
      fill(quantity, answer.present, wanted.quantity);
      if (answer.present.length && !answer.present.includes(wanted.quantity)) { [wanted.quantity] = answer.present; quantity.value = wanted.quantity; restart(); return; }
      const text = JSON.stringify(answer);
      if (text === before || isSelected(place)) return;
      before = text;
      replace(place, answer.rows.length ? heatmap(answer) : h("p", {}, "No samples. They appear about half a minute after the ranks start."));
    }, 10, page.failed);
  }
  restart();
  return { update(run) { offerAttempts(attempt, run, wanted); }, close: () => end() };
}

function report(body, id, query, page) {
  const place = h("pre", { className: "report", tabIndex: 0 }, "Loading …");
  replace(body, place);
  return { close: poll(async () => {
    const answer = await get("report", { run: id });
    const text = answer.lines.join("\n");
    if (place.textContent !== text) place.textContent = text;
  }, 15, page.failed) };
}

function logs(body, id, query, page) {
  const rank = h("select", { onchange: choose }), attempt = h("select", { onchange: choose });
  const text = document.createElement("span"), rest = h("span", { className: "rest" });
  const box = h("pre", { className: "log", tabIndex: 0, role: "log", ariaLabel: "Output" }, text, rest);
  const note = h("p", { className: "quiet" });
  replace(body, h("div", { className: "controls" }, h("label", {}, "Rank", rank), h("label", {}, "Attempt", attempt)), note, box);
  let end = () => {}, wanted = { rank: query.get("rank"), attempt: query.get("attempt") }, names = null;
  function choose() {
    wanted = { rank: rank.value, attempt: newestOr(attempt) };
    remember(wanted);
    restart();
  }
  function restart() {
    end();
    let ended = false, next = null, shown = null;
    const stop = poll(async () => {
      const answer = await get("log", { run: id, rank: wanted.rank || names[0] || 0, attempt: wanted.attempt, offset: next });
      if (ended) return;
      if (shown !== null && answer.attempt !== shown) { restart(); return; }
      shown = answer.attempt;
      next = answer.next;
      const isAtEnd = answer.is_new || box.scrollHeight - box.scrollTop - box.clientHeight < 40;
      if (answer.is_new) {
        text.replaceChildren();
        note.textContent = answer.is_cut ? `The last lines of ${number(answer.size, "bytes")}. All of them: serried logs ${id} --rank ${String(wanted.rank || names[0]).split("-")[0]}` : "";
      }
      if (!answer.size) note.textContent = "No output yet.";
      else if (note.textContent === "No output yet.") note.textContent = "";
      for (const line of answer.lines) text.append(document.createTextNode(`${line}\n`));
      while (text.childNodes.length > MOST_LINES) text.firstChild.remove();
      rest.textContent = answer.rest;
      if (isAtEnd) box.scrollTop = box.scrollHeight;
    }, 1, page.failed);
    end = () => { ended = true; stop(); };
  }
  return {
    update(run) {
      const isFirst = !names;
      names = run.ranks;
      fill(rank, names, wanted.rank);
      offerAttempts(attempt, run, wanted);
      if (isFirst) restart();
    },
    close: () => end(),
  };
}

// The newest attempt is chosen as "the newest", so that the next one follows it.
const newestOr = (attempt) => (attempt.selectedIndex > 0 ? attempt.value : null);

function offerAttempts(attempt, run, wanted) {
  fill(attempt, [...run.attempts].reverse(), wanted.attempt);
  if (wanted.attempt === null && attempt.selectedIndex > 0) attempt.selectedIndex = 0;
}

function plan(body, id, query, page) {
  const place = h("div");
  replace(body, place);
  let done = "";
  return { async update(run) {
    const names = Object.keys(run.files), text = JSON.stringify([names, run.plan]);
    if (text === done) return;
    done = text;
    const texts = [];
    for (const name of names) {
      try { texts.push(await get("file", { run: id, name })); } catch (error) { page.failed(error); }
    }
    const [lines, notes] = [true, false].map((isLine) => run.plan.filter(([name]) => Boolean(name) === isLine));
    replace(place, list(lines), notes.map(([, note]) => h("p", { className: "quiet" }, note)), h("h2", {}, "Files"), texts.map((one) => h("details", {}, h("summary", {}, h("strong", {}, one.name === "plan" ? "plan.json" : one.name), " ", h("code", { className: "quiet" }, one.path)), h("pre", { tabIndex: 0 }, one.name === "plan" ? pretty(one.text) : one.text, one.is_cut ? "\n… cut here" : ""))));
  } };
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
