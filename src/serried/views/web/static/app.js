// The pages by their address: #/  #/run/ID/TAB  #/sweep/ID  #/compare?runs=A,B

import { takeToken } from "./api.js";
import { h, replace } from "./dom.js";
import { runsPage } from "./runs.js";
import { runPage } from "./run.js";
import { sweepPage } from "./sweep.js";
import { comparePage } from "./compare.js";

const PAGES = { "": runsPage, run: runPage, sweep: sweepPage, compare: comparePage };
let leave = () => {};

function show() {
  takeToken();
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...words] = path.split("/").map(decode);
  const main = document.getElementById("main");
  leave();
  leave = () => {};
  const page = Object.hasOwn(PAGES, name) ? PAGES[name] : null;
  if (!page) { trail([]); replace(main, h("h1", {}, "There is no such page"), h("a", { href: "#/" }, "All runs")); return; }
  document.getElementById("notice").textContent = "";
  leave = page(main, words, new URLSearchParams(query), { trail, failed, notice }) || leave;
}

function decode(word) {
  try { return decodeURIComponent(word); } catch { return word; }
}

function trail(parts) {
  document.title = [...parts.map((part) => part[0]).reverse(), "Serried"].join(" · ");
  replace(document.getElementById("trail"), parts.map(([text, address]) => h("li", {}, address ? h("a", { href: address }, text) : text)));
}

// Why the states shown may be old.
function notice(text) {
  const place = document.getElementById("notice");
  if (place.textContent !== text) place.textContent = text;
}

function failed(error) {
  const place = document.getElementById("freshness");
  if (!error) { place.textContent = `updated ${new Date().toLocaleTimeString()}`; place.className = ""; return; }
  if (!error.status && error.message !== "no answer from serried watch --web") console.error(error);
  replace(place, `${error.message}${error.hint ? `: ${error.hint}` : ""}`);
  place.className = "bad";
}

addEventListener("hashchange", () => { show(); document.getElementById("main").focus({ preventScroll: true }); });
show();
