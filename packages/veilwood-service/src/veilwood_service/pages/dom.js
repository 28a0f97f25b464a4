// Small helpers: elements without markup from strings, texts in one file, requests that repeat the session's word.
export const state = { me: null, texts: {} };

export function t(key, values = {}) {
  return (state.texts[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const card = (...children) => h("section", { class: "card" }, ...children);
export const tag = (words, kind = "") => h("span", { class: `tag ${kind}` }, words);
export const can = (scope) => state.me?.scopes.includes(scope) ?? false;

export function field(name, words, { help = "", ...more } = {}) {
  const input = more.options
    ? h("select", { name }, more.options.map(([value, shown]) => h("option", { value, selected: value === more.value }, shown)))
    : h(more.rows ? "textarea" : "input", { name, ...more });
  return h("label", {}, words, help && h("span", { class: "help" }, help), input);
}

export function form(fields, words, act) {
  const button = h("button", { type: "submit" }, words);
  return h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      hush();
      button.disabled = true;
      try {
        await act(Object.fromEntries(new FormData(event.target)), event.target);
      } catch (error) {
        notify(error.message, true);
      } finally {
        button.disabled = false;
      }
    },
  }, fields, button);
}

export function action(words, act, kind = "quiet") {
  return h("button", {
    type: "button", class: kind,
    onclick: async (event) => {
      hush();
      event.target.disabled = true;
      try { await act(); } catch (error) { notify(error.message, true); } finally { event.target.disabled = false; }
    },
  }, words);
}

/** What went wrong before is over when somebody tries again. */
const hush = () => document.querySelector("#notice > .bad")?.remove();

let timer;
export function notify(words, bad = false) {
  const place = document.getElementById("notice");
  place.replaceChildren(h("p", { class: bad ? "bad" : "" }, words));
  clearTimeout(timer);
  timer = setTimeout(() => place.replaceChildren(), 3000 + 60 * words.length);
}

export async function api(method, path, body, headers = {}) {
  const raw = body instanceof Blob || body instanceof ArrayBuffer || typeof body === "string";
  const answer = await fetch(`/v1${path}`, {
    method,
    headers: {
      ...(state.me?.csrf ? { "X-CSRF-Token": state.me.csrf } : {}),
      ...(body !== undefined && !raw ? { "Content-Type": "application/json" } : {}),
      ...headers,
    },
    body: body === undefined ? undefined : raw ? body : JSON.stringify(body),
  });
  if (answer.status === 204) return null;
  const kind = answer.headers.get("content-type") ?? "";
  if (!answer.ok) {
    const problem = kind.includes("json") ? await answer.json() : {};
    if (answer.status === 401 && state.me) { state.me = null; location.hash = "#/login"; }
    throw new Error(problem.detail ?? `The service answered ${answer.status}.`);
  }
  if (!kind.includes("json")) return answer.blob();
  const content = await answer.json();
  return content?.items ? content.items.reverse() : content;
}

/** The cells of a CSV text, line by line; quotes may hold separators, line ends and doubled quotes. */
export function cellsOf(text, separator = ",") {
  const lines = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length; i += 1) {
    const line = lines.at(-1), sign = text[i];
    if (quoted && sign === '"' && text[i + 1] === '"') { line[line.length - 1] += sign; i += 1; }
    else if (sign === '"') quoted = !quoted;
    else if (!quoted && sign === separator) line.push("");
    else if (!quoted && sign === "\n") lines.push([""]);
    else if (quoted || sign !== "\r") line[line.length - 1] += sign;
  }
  return lines.map((line) => line.map((cell) => cell.trim())).filter((line) => line.some(Boolean));
}

export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

export const key = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
/** The epsilon in words such as "epsilon=1/2, delta=1e-6". */
export const epsilonOf = (words) => {
  const found = /epsilon=([0-9.e+-]+)/.exec(words ?? "");
  return found ? Number(found[1]) : 0;
};
export const when = (time) => h("time", { datetime: time }, new Date(time).toLocaleString());
