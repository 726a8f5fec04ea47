// Requests to the API. The token comes behind the # of the address, stays in this tab, and leaves the address at once.

const KEY = "serried-token";
const answers = new Map();

export class Refused extends Error {
  constructor(status, message, hint) { super(message); this.status = status; this.hint = hint; }
}

// Tabs of this address give each other the token, so that links open in new tabs and bookmarks work. That of an address
// just opened replaces all others: `serried watch --web` was started again.
const tabs = new BroadcastChannel(KEY);
tabs.onmessage = ({ data }) => {
  const own = sessionStorage.getItem(KEY);
  if (data.wanted && own) tabs.postMessage({ token: own });
  else if (data.token && data.token !== own && (data.isNew || !own)) { sessionStorage.setItem(KEY, data.token); dispatchEvent(new Event("hashchange")); }
};

export function takeToken() {
  const given = /^#token=([\w-]+)(?:&(.*))?$/.exec(location.hash);
  if (!given) { if (!sessionStorage.getItem(KEY)) tabs.postMessage({ wanted: true }); return; }
  sessionStorage.setItem(KEY, given[1]);
  tabs.postMessage({ token: given[1], isNew: true });
  history.replaceState(null, "", given[2] ? `#${given[2]}` : "#/");
}

// The address names what is shown: `values` by name, without those that are empty.
export function remember(values) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) for (const one of [value].flat()) if (one || one === 0) words.append(key, one);
  const text = String(words);
  history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
}

export async function get(name, query = {}) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of [value].flat()) if (one !== null && one !== undefined) words.append(key, one);
  }
  const address = `api/${name}?${words}`;
  const known = answers.get(address);
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) || ""}` };
  if (known) headers["If-None-Match"] = known.tag;
  let answer;
  try {
    answer = await fetch(address, { headers, cache: "no-store" });
  } catch {
    throw new Refused(0, "no answer from serried watch --web", "Has it ended, or the ssh connection? Start `serried watch --web` again.");
  }
  if (answer.status === 304) return known.value;
  let value;
  try { value = await answer.json(); } catch { throw new Refused(answer.status, `unexpected answer ${answer.status}`); }
  if (!answer.ok) throw new Refused(answer.status, value.error, value.hint);
  if (name !== "log") {
    answers.delete(address);
    answers.set(address, { tag: answer.headers.get("ETag"), value });
    if (answers.size > 50) answers.delete(answers.keys().next().value);
  }
  return value;
}

// Calls `work` now and again every few seconds while the page is shown, and less often where an answer takes long.
// Returns a function that ends it. `failed` gets an error, null after a success.
export function poll(work, every, failed) {
  let timer = null, ended = false;
  const turn = async () => {
    const began = performance.now();
    try { await work(); if (!ended) failed(null); } catch (error) { if (!ended) failed(error); }
    const took = performance.now() - began;
    if (!ended) timer = setTimeout(when, Math.max(every * 1000, 10 * took));
  };
  const when = () => { if (document.hidden) timer = setTimeout(when, 1000); else turn(); };
  turn();
  return () => { ended = true; clearTimeout(timer); };
}
