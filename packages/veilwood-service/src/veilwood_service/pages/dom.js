// Elements, requests, forms with errors beside their fields, sortable tables and bars. No markup is made from strings.
export const state = { me: null };

export function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [rule, set] of Object.entries(value)) node.style.setProperty(rule, set);
    else if (key === "value") node.value = value;
    else node.setAttribute(key === "class" ? "class" : key, value === true ? "" : value);
  }
  node.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const card = (title, ...children) => h("section", { class: "card" }, title && h("h2", {}, title), ...children);
export const soft = (...words) => h("p", { class: "soft small" }, ...words);
export const tag = (words, kind = "") => h("span", { class: `tag ${kind}` }, words);
export const link = (address, ...words) => h("a", { href: address }, ...words);
export const can = (scope) => state.me?.scopes.includes(scope) ?? false;
export const when = (time) =>
  h("time", { datetime: time }, new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
export const again = () => window.dispatchEvent(new HashChangeEvent("hashchange"));
export const randomKey = () => crypto.randomUUID?.() ?? String(crypto.getRandomValues(new Uint32Array(4)));

/** A number, of a decimal or a fraction as the service writes it. */
export function numberOf(text) {
  const [above, below = "1"] = String(text).split("/");
  return Number(above) / Number(below);
}

export const short = (value, digits = 4) =>
  value === null || value === undefined ? "–" : String(Number(numberOf(value).toPrecision(digits)));

/** The epsilon of a loss as the service writes it. */
export const epsilonOf = (loss) => short(loss?.replace(/epsilon=([^,]+).*/, "$1"));

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

// -- requests ---------------------------------------------------------------------------------------------------------

export async function api(method, path, body, headers = {}) {
  const isRaw = body instanceof Blob || typeof body === "string";
  const response = await fetch(`/v1${path}`, {
    method,
    headers: {
      ...(state.me?.csrf && method !== "GET" ? { "X-CSRF-Token": state.me.csrf } : {}),
      ...(body !== undefined && !isRaw ? { "Content-Type": "application/json" } : {}),
      ...headers,
    },
    body: body === undefined || isRaw ? body : JSON.stringify(body),
  });
  if (response.status === 204) return null;
  const isJson = (response.headers.get("content-type") ?? "").includes("json");
  if (!response.ok) {
    const problem = isJson ? await response.json() : {};
    if (response.status === 401 && state.me) {
      state.me = null;
      location.hash = "#/login";
    }
    const error = new Error(sentence(problem.detail ?? `the service answered ${response.status}.`));
    throw Object.assign(error, { field: problem.field, status: response.status });
  }
  return isJson ? response.json() : response.blob();
}

const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

export function save(blob, name) {
  const download = h("a", { href: URL.createObjectURL(blob), download: name });
  download.click();
  URL.revokeObjectURL(download.href);
}

export const saveJson = (content, name) =>
  save(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }), name);

let timer;
/** Say that something is done. Errors stand beside their field instead. */
export function notify(words) {
  const place = document.getElementById("notice");
  place.replaceChildren(h("p", {}, words));
  clearTimeout(timer);
  timer = setTimeout(() => place.replaceChildren(), 3000 + 60 * words.length);
}

// -- forms ------------------------------------------------------------------------------------------------------------

export function field(name, words, { help = "", after = null, ...more } = {}) {
  const { options, value, ...others } = more;
  const input = options
    ? h(
        "select",
        { name, ...others },
        options.map(([key, shown]) => h("option", { value: key, selected: key === value }, shown)),
      )
    : h(more.rows ? "textarea" : "input", { name, ...more });
  return h(
    "div",
    { class: "field" },
    h("label", {}, h("span", {}, words), help && h("span", { class: "help" }, help), input),
    after,
  );
}

export function choices(name, words, options, isChecked = () => false) {
  return h(
    "fieldset",
    {},
    h("legend", {}, words),
    options.map(([value, shown, help]) =>
      h(
        "label",
        { class: "choice" },
        h("input", { type: "checkbox", name, value, checked: isChecked(value) }),
        shown,
        help && h("span", { class: "help" }, help),
      ),
    ),
  );
}

/** Show an error beside the field that it is about, or else above the button. */
function showError(place, button, error) {
  const input = error.field ? place.elements.namedItem(error.field) : null;
  const note = h("p", { class: "error", role: "alert", id: `error-${randomKey()}` }, error.message);
  if (input instanceof Element) {
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", note.id);
    for (let box = input.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    input.closest("label").after(note);
    input.focus();
  } else button.before(note);
}

function clearErrors(place) {
  for (const note of place.querySelectorAll(".error")) note.remove();
  for (const input of place.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

/** A form. ``act`` gets the values, where checkboxes of one name are a list, and the form. */
export function form(fields, words, act, kind = "") {
  const button = h("button", { type: "submit", class: kind }, words);
  const submit = async (event) => {
    event.preventDefault();
    const place = event.target;
    clearErrors(place);
    button.disabled = true;
    const data = new FormData(place),
      boxes = [...place.querySelectorAll("[type=checkbox]")].map((box) => box.name);
    const values = {
      ...Object.fromEntries(data),
      ...Object.fromEntries(boxes.map((name) => [name, data.getAll(name)])),
    };
    try {
      await act(values, place);
    } catch (error) {
      showError(place, button, error);
    } finally {
      button.disabled = false;
    }
  };
  return h("form", { onsubmit: submit }, fields, button);
}

/** A button. What goes wrong stands beside it. */
export function action(words, act, kind = "quiet", label = null) {
  const press = async (event) => {
    const button = event.currentTarget,
      box = button.parentElement;
    box.querySelector(":scope > .error")?.remove();
    button.disabled = true;
    try {
      await act();
    } catch (error) {
      button.after(h("p", { class: "error", role: "alert" }, error.message));
    } finally {
      button.disabled = false;
    }
  };
  return h("button", { type: "button", class: kind, onclick: press, "aria-label": label }, words);
}

/** A file field that acts when a file is chosen. */
export function fileField(words, accept, act, help = "") {
  const place = h("div", { role: "status" });
  const input = h("input", {
    type: "file",
    accept,
    onchange: async () => {
      place.replaceChildren(h("progress", { "aria-label": "Sending" }));
      try {
        await act(input.files[0]);
        place.replaceChildren();
      } catch (error) {
        place.replaceChildren(h("p", { class: "error" }, error.message));
      }
      input.value = "";
    },
  });
  return h(
    "div",
    { class: "field" },
    h("label", {}, h("span", {}, words), help && h("span", { class: "help" }, help), input),
    place,
  );
}

// -- tables and bars --------------------------------------------------------------------------------------------------

const MIN_FILTERED = 10;

/**
 * A table that is sorted by its headings, and filtered if it is long. On a phone each row is a block of named values.
 * A column is [heading, value for sorting (null: none), cell (by default the value), isNumber].
 */
export function table(caption, columns, rows, empty = "Nothing yet.") {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  const body = h("tbody", { role: "rowgroup" }),
    count = h("span", { class: "soft small", role: "status" });
  let sorted = null,
    isDown = false,
    words = "";
  const fill = () => {
    const texts = (row) => columns.map(([, value]) => String(value?.(row) ?? "").toLowerCase());
    const shown = rows.filter((row) => texts(row).some((text) => text.includes(words)));
    if (sorted !== null) {
      const value = columns[sorted][1];
      shown.sort((a, b) => compare(value(a), value(b)) * (isDown ? -1 : 1));
    }
    count.textContent = words ? `${shown.length} of ${rows.length}` : "";
    body.replaceChildren(
      ...shown.map((row) =>
        h(
          "tr",
          { role: "row" },
          columns.map(([name, value, show, isNumber], i) =>
            h(
              i ? "td" : "th",
              {
                role: i ? "cell" : "rowheader",
                scope: i ? null : "row",
                class: isNumber ? "number" : null,
                "data-name": name,
              },
              h("div", {}, (show ?? value)(row)),
            ),
          ),
        ),
      ),
    );
  };
  const sort = (i, isNumber) => {
    isDown = sorted === i ? !isDown : Boolean(isNumber);
    sorted = i;
    const direction = isDown ? "descending" : "ascending";
    heads.forEach((head, j) => head.ariaSort !== null && head.setAttribute("aria-sort", i === j ? direction : "none"));
    fill();
  };
  const heads = columns.map(([name, value, , isNumber], i) => {
    const attributes = { role: "columnheader", scope: "col", class: isNumber ? "number" : null };
    if (!value) return h("th", attributes, name);
    const button = h("button", { type: "button", class: "sort", onclick: () => sort(i, isNumber) }, name);
    return h("th", { ...attributes, "aria-sort": "none" }, button);
  });
  fill();
  const filter =
    rows.length >= MIN_FILTERED &&
    h(
      "div",
      { class: "row filter" },
      h("input", {
        type: "search",
        placeholder: "Filter",
        "aria-label": `Filter: ${caption}`,
        oninput: (event) => {
          words = event.target.value.toLowerCase();
          fill();
        },
      }),
      count,
    );
  return h(
    "div",
    {},
    filter,
    h(
      "table",
      { role: "table", "aria-label": caption },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      body,
    ),
  );
}

function compare(a, b) {
  if (typeof a === "number" || typeof b === "number") return (a ?? -Infinity) - (b ?? -Infinity);
  return String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true });
}

/** Bars with their names and values: {name, value, text, low, high, mark}. Values below 0 go to the left. */
export function bars(caption, rows, most = null) {
  const ends = rows
    .flatMap((row) => [row.value, row.low, row.high, row.mark])
    .filter((value) => value !== undefined && value !== null);
  const low = Math.min(0, ...ends),
    high = most ?? Math.max(...ends, low + 1e-9);
  const place = (value) => (100 * (Math.min(Math.max(value, low), high) - low)) / (high - low);
  const span = (kind, from, to) =>
    h("span", {
      class: kind,
      style: { left: `${place(Math.min(from, to))}%`, width: `${Math.abs(place(to) - place(from))}%` },
    });
  return h(
    "ul",
    { class: "bars", "aria-label": caption },
    rows.map((row) =>
      h(
        "li",
        {},
        h("span", { class: "name" }, row.name),
        h(
          "span",
          { class: "track", "aria-hidden": "true" },
          span(row.value < 0 ? "bar minus" : "bar", 0, row.value),
          row.low !== undefined && row.low !== null && span("range", row.low, row.high),
          row.mark !== undefined && span("mark", row.mark, row.mark),
        ),
        h("span", { class: "value" }, row.text ?? short(row.value)),
      ),
    ),
  );
}

/** Large numbers with their names, at the top of a page. */
export const tiles = (pairs) =>
  h(
    "dl",
    { class: "tiles" },
    pairs
      .filter(Boolean)
      .map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, more && h("small", {}, more)))),
  );

/** What one release means for one person, as how often a guess about them is right. */
export function meaning(epsilon) {
  const after = 1 / (1 + Math.exp(-epsilon));
  const percent = (value) => `${(100 * value).toFixed(value > 0.99 ? 2 : 0)} %`;
  return h(
    "div",
    {},
    bars(
      "What it means for one person",
      [
        { name: "before: a coin flip", value: 0.5, text: "50 %" },
        { name: "after, at most", value: after, text: percent(after) },
      ],
      1,
    ),
    soft(
      `Someone who could only guess whether a person is in the table is right in half of the cases. With this release they are right in at most ${percent(after)}, whatever else they know.`,
    ),
  );
}

/** Cells of a CSV text, line by line. Quotes may hold separators, line ends and doubled quotes. */
export function cellsOf(text, separator = ",") {
  const lines = [[""]];
  let isQuoted = false;
  for (let i = 0; i < text.length; i += 1) {
    const line = lines.at(-1),
      sign = text[i];
    if (isQuoted && sign === '"' && text[i + 1] === '"') {
      line[line.length - 1] += sign;
      i += 1;
    } else if (sign === '"') isQuoted = !isQuoted;
    else if (!isQuoted && sign === separator) line.push("");
    else if (!isQuoted && sign === "\n") lines.push([""]);
    else if (isQuoted || sign !== "\r") line[line.length - 1] += sign;
  }
  return lines.map((line) => line.map((cell) => cell.trim())).filter((line) => line.some(Boolean));
}
