// Elements, and numbers as text. All text becomes text nodes: nothing of a run is ever parsed as HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : spelled(String(child)));
  }
}

// Characters that reorder or hide others are spelled out, as in a terminal.
const spelled = (text) => text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

// Whether the user has selected text in the element: to copy it takes longer than the next update.
export const isSelected = (element) => !getSelection().isCollapsed && getSelection().containsNode(element, true);

// A list to choose from. What was chosen stays, or is `first`; while the user has not chosen, the first value is.
export function fill(select, values, first = null) {
  if ([...select.options].map((option) => option.value).join() === values.join()) return;
  const chosen = select.options.length ? select.value : String(first);
  replace(select, values.map((value) => h("option", { value, selected: String(value) === chosen }, String(value).replaceAll("_", " "))));
}

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const two = (number) => String(Math.floor(number)).padStart(2, "0");

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < MINUTE) return `${whole}s`;
  if (whole < HOUR) return `${Math.floor(whole / MINUTE)}m${two(whole % MINUTE)}s`;
  if (whole < DAY) return `${Math.floor(whole / HOUR)}h${two((whole % HOUR) / MINUTE)}m`;
  return `${Math.floor(whole / DAY)}d${two((whole % DAY) / HOUR)}h`;
}

// A moment in seconds, without a year that goes without saying.
export function clock(moment) {
  const date = new Date(moment * 1000), year = date.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return date.toLocaleString([], { ...year, month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

export function ago(moment) {
  const seconds = Date.now() / 1000 - moment;
  for (const [unit, letter] of [[DAY, "d"], [HOUR, "h"], [MINUTE, "m"]]) {
    if (seconds >= unit) return `${Math.floor(seconds / unit)}${letter} ago`;
  }
  return "just now";
}

export function number(value, unit = "") {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (unit === "bytes") {
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (Math.abs(value) >= 1024 && at < names.length - 1) { value /= 1024; at += 1; }
    return `${value.toPrecision(3)} ${names[at]}`;
  }
  const text = Number.isInteger(value) && Math.abs(value) < 1e7 ? String(value) : String(Number(value.toPrecision(4)));
  return unit ? `${text} ${unit}` : text;
}

// The shortest texts in which the marks of an axis differ. All have the unit of the largest.
export function marks(values, isBytes = false) {
  const top = Math.max(...values.map((one) => Math.abs(one ?? 0)));
  const [unit, size] = (isBytes ? BYTES : THOUSANDS).findLast(([, , from]) => top >= from) || ["", 1];
  const isOdd = top !== 0 && (top < 1e-3 || top / size >= 1e5);
  const text = (one, digits) => (one === 0 ? "0" : isOdd ? Number(one.toPrecision(digits)).toExponential() : Number((one / size).toPrecision(digits)) + unit);
  const known = values.filter((one) => one !== null);
  let digits = 3;
  while (digits < 16 && new Set(known.map((one) => text(one, digits))).size < known.length) digits += 1;
  return values.map((one) => (one === null ? "" : text(one, digits)));
}

const THOUSANDS = [["k", 1e3, 1e4], ["M", 1e6, 1e6], ["G", 1e9, 1e9], ["T", 1e12, 1e12]];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"].map((unit, at) => [` ${unit}`, 1024 ** at, 1024 ** at]);
const CLASSES = { COMPLETED: "good", RUNNING: "busy", PENDING: "waiting", SUBMITTING: "waiting", CANCELLED: "quiet",
  PREEMPTED: "waiting", UNKNOWN: "waiting", UNCERTAIN: "waiting", PRUNED: "quiet" };

export const state = (word) => h("span", { className: `state ${CLASSES[word] || "bad"}` }, word);
export const seconds = (iso) => (iso ? Date.parse(iso) / 1000 : null);
