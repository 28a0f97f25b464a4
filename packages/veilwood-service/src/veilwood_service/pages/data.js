// Data sets: budgets, tables, schemas, ledgers.
import { action, api, can, card, epsilonOf, field, form, h, notify, t, tag, when } from "/page/dom.js";
import { spends } from "/page/charts.js";

const again = () => window.dispatchEvent(new HashChangeEvent("hashchange"));

export function gauge(found) {
  const budget = epsilonOf(found.budget), left = epsilonOf(found.remaining_for_you ?? found.remaining);
  const share = budget ? left / budget : 0;
  const words = t("data.left", { left: left.toString(), budget: budget.toString() });
  return [h("div", { class: `gauge ${share < 0.2 ? "low" : ""}`, role: "meter", "aria-valuemin": 0, "aria-valuemax": budget, "aria-valuenow": left, "aria-label": words },
    h("span", { style: `width:${100 * share}%` })), h("p", { class: "small soft", style: "margin:0" }, `epsilon: ${words}`)];
}

function status(found) {
  if (found.frozen) return tag(t("data.frozen"), "bad");
  if (!found.has_table) return tag(t("data.no_table"), "wait");
  if (!found.has_schema) return tag(t("data.no_schema"), "wait");
  return tag(t("data.ready"), "good");
}

export async function list() {
  const found = await api("GET", "/datasets");
  return [h("h1", {}, t("data.title")), h("p", { class: "lead" }, t("data.lead")),
    found.length ? h("div", { class: "grid" }, found.map((one) => h("article", { class: "card" },
      h("div", { class: "row spread" }, h("h2", {}, h("a", { href: `#/data/${one.name}` }, one.name)), status(one)),
      h("p", { class: "soft small", style: "margin:0" }, one.people), gauge(one)))) : h("p", {}, t(can("data") ? "data.none.custodian" : "data.none")),
    can("data") && h("div", { style: "margin-top:1.5rem" }, card(h("h2", {}, t("data.new")), form([
      field("name", t("data.name"), { required: true, pattern: "[a-z][a-z0-9_]{0,29}", help: t("data.name.help") }),
      field("people", t("data.people"), { required: true, help: t("data.people.help") }),
      field("epsilon", t("data.epsilon"), { required: true, value: "3", inputmode: "decimal", help: t("data.epsilon.help") }),
      h("details", { class: "plain" }, h("summary", {}, t("data.source")), field("source", t("data.source.path"), { help: t("data.source.help") }))],
    t("data.go"), async ({ source, ...asked }) => { await api("POST", "/datasets", source ? { ...asked, source } : asked); location.hash = `#/data/${asked.name}`; })))];
}

export async function one(name) {
  const found = await api("GET", `/datasets/${name}`);
  const schema = found.has_schema ? await api("GET", `/datasets/${name}/schema`) : null;
  const ledger = can("records") ? await api("GET", `/datasets/${name}/ledger`) : null;
  return [h("div", { class: "row spread" }, h("h1", {}, name), status(found)), h("p", { class: "lead" }, found.people),
    found.frozen && frozen(name),
    card(h("h2", {}, t("set.budget")), gauge(found), ledger && ledger.entries.length > 0 && timeline(ledger),
      found.has_table && found.has_schema && can("plan") && h("p", {}, h("a", { class: "button", href: `#/data/${name}/plan` }, t("set.plan")))),
    can("data") && table(name, found),
    schemaCard(name, found, schema),
    can("data") && await limits(name),
    ledger && ledgerCard(name, ledger)];
}

function timeline(ledger) {
  const entries = ledger.entries.map((entry) => ({ time: entry.time, epsilon: epsilonOf(entry.loss), words: `${entry.loss}, ${entry.what}`, counts: entry.state !== "cancelled" }));
  return h("figure", {}, spends(entries, epsilonOf(ledger.budget), t("set.timeline")), h("figcaption", {}, t("set.timeline")));
}

function frozen(name) {
  return card(h("p", {}, t("set.frozen")), can("data") && form([field("reason", t("set.reason"), { required: true }),
    field("files", t("set.certificates"), { type: "file", accept: ".json", multiple: true, help: t("set.certificates.help") }),
    field("missing", t("set.missing"), { inputmode: "decimal", help: t("set.missing.help") })], t("set.reconcile"), async ({ reason, missing }, place) => {
    const certificates = await Promise.all([...place.elements.files.files].map(async (file) => JSON.parse(await file.text())));
    await api("POST", `/datasets/${name}/ledger/reconcile`, { reason, certificates, missing_epsilon: missing || null });
    again();
  }));
}

function table(name, found) {
  const place = h("div", { role: "status" });
  const input = h("input", { type: "file", accept: ".csv,.parquet", onchange: async (event) => {
    const file = event.target.files[0];
    const kind = file.name.endsWith(".parquet") ? "application/vnd.apache.parquet" : "text/csv";
    place.replaceChildren(t("set.uploading"), h("progress", {}));
    try { await api("PUT", `/datasets/${name}/table`, file, { "Content-Type": kind }); notify(t("saved")); again(); } catch (error) { place.replaceChildren(); notify(error.message, true); }
  } });
  return card(h("h2", {}, t("set.table")), found.has_table && h("p", {}, t("set.table.have")), h("label", {}, t("set.upload"), input), place);
}

function domain(column) {
  const values = column.values?.map(String) ?? [];
  const words = column.values ? values.slice(0, 12).join(", ") + (values.length > 12 ? " …" : "") : column.lower !== undefined ? t("set.range", column) : "";
  return column.nullable ? t("set.nullable", { words }) : words;
}

function schemaCard(name, found, schema) {
  const parts = [h("h2", {}, t("set.schema"))];
  if (schema) {
    parts.push(h("p", {}, t("set.schema.have", { features: schema.columns.length - 1, target: schema.target })),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("set.schema") }, h("table", {}, h("thead", {}, h("tr", {}, ["set.column", "set.kind", "set.domain"].map((words) => h("th", { scope: "col" }, t(words))))),
        h("tbody", {}, schema.columns.map((column) => h("tr", {}, h("th", { scope: "row" }, column.name), h("td", {}, column.kind), h("td", {}, domain(column))))))),
      h("details", {}, h("summary", {}, "JSON"), h("pre", {}, JSON.stringify(schema, null, 1))));
  } else parts.push(h("p", {}, t("set.schema.none")));
  if (can("data")) {
    const ways = [found.has_table && form([field("target", t("set.target"), {})], t("set.draft"), async (asked) => {
        const target = asked.target ? `?target=${encodeURIComponent(asked.target)}` : "";
        drafts[name] = await api("POST", `/datasets/${name}/draft${target}`);
        location.hash = `#/data/${name}/review`;
      }),
      h("p", {}), h("label", {}, t("set.file"), h("input", { type: "file", accept: ".json", onchange: async (event) => {
        try { await api("PUT", `/datasets/${name}/schema`, JSON.parse(await event.target.files[0].text())); notify(t("review.saved")); again(); } catch (error) { notify(error.message, true); }
      } }))];
    parts.push(schema ? h("details", {}, h("summary", {}, t("set.schema.change")), ways) : h("div", {}, ways));
  }
  return card(...parts);
}

async function limits(name) {
  const found = await api("GET", `/datasets/${name}/allowances`);
  const words = { "": t("set.limits.forever"), year: t("set.limits.year"), month: t("set.limits.month") };
  return card(h("h2", {}, t("set.limits")), h("p", { class: "soft small" }, t("set.limits.lead")),
    found.length > 0 && h("table", {}, h("tbody", {}, found.map((limit) => h("tr", {}, h("td", {}, limit.account || "*"), h("td", {}, words[limit.period]), h("td", {}, `epsilon ${limit.epsilon}`),
      h("td", {}, action(t("set.limits.remove"), async () => { await api("DELETE", `/datasets/${name}/allowances/${limit.id}`); again(); }, "danger")))))),
    h("details", {}, h("summary", {}, t("set.limits.add")), form([field("account", t("set.limits.account")),
      field("period", t("set.limits.period"), { options: Object.entries(words), value: "" }), field("epsilon", "Epsilon", { required: true, value: "1", inputmode: "decimal" })],
    t("set.limits.add"), async (asked) => { const made = await api("POST", `/datasets/${name}/allowances`, asked); notify(made.warning ?? t("saved")); again(); })));
}

function ledgerCard(name, ledger) {
  const body = h("tbody"), count = h("span", { class: "soft small" }), verified = h("div", { role: "status" });
  const fill = (words) => {
    const shown = ledger.entries.filter((entry) => JSON.stringify(entry).toLowerCase().includes(words.toLowerCase()));
    count.textContent = t("set.entries", { count: shown.length });
    body.replaceChildren(...shown.map((entry) => h("tr", {}, h("td", {}, entry.id), h("td", {}, when(entry.time)),
      h("td", {}, tag(entry.state, entry.state === "committed" ? "good" : "wait")), h("td", { class: "number" }, entry.loss), h("td", {}, entry.what, h("div", { class: "mono soft" }, entry.plan.slice(0, 16))))));
  };
  fill("");
  return card(h("div", { class: "row spread" }, h("h2", {}, t("set.ledger")), action(t("set.verify"), async () => {
    const { head } = await api("POST", `/datasets/${name}/ledger/verify`);
    verified.replaceChildren(h("p", { class: "plain" }, tag(t("set.intact"), "good"), " ", t("set.verified")), h("p", { class: "mono plain" }, head));
  })), verified, ledger.entries.length > 0 && field("search", t("set.search"), { type: "search", oninput: (event) => fill(event.target.value) }), count,
  ledger.entries.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("set.ledger") }, h("table", { class: "wide" }, h("thead", {}, h("tr", {}, h("th", {}, "#"), h("th", {}, t("when")), h("th", {}, t("state")), h("th", { class: "number" }, t("loss")), h("th", {}, t("what")))), body)));
}

// -- the review of a drafted schema: the questions come from the service, so that page and terminal ask the same --------

const drafts = {};

export async function review(name) {
  if (!drafts[name]) drafts[name] = await api("POST", `/datasets/${name}/draft`);
  const place = h("div");
  let later = [];
  const step = async (answer) => {
    try {
      const found = await api("POST", `/datasets/${name}/review`, { draft: drafts[name], answer, later });
      drafts[name] = found.draft;
      later = found.later;
      place.replaceChildren(question(name, found.question, step));
      (place.querySelector("[data-first]") ?? place.querySelector("input"))?.focus();
    } catch (error) { notify(error.message, true); }
  };
  let here = false;
  const keys = (event) => {
    here ||= place.isConnected;
    if (here && !place.isConnected) document.removeEventListener("keydown", keys);
    if (!place.isConnected || event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = { Enter: "[data-first]", x: "[data-leave]", l: "[data-later]" }[event.key];
    if (event.key === "Enter" && ["BUTTON", "A"].includes(event.target.tagName)) return; // which it presses by itself
    place.querySelector(pressed ?? "[data-none]")?.click();
  };
  document.addEventListener("keydown", keys);
  await step(null);
  return [h("h1", {}, t("review.title")), h("p", { class: "lead" }, t("review.lead")), place];
}

function question(name, asked, step, numeric = asked?.kind === "numeric") {
  if (!asked) {
    return card(h("p", {}, t("review.done")), action(t("review.save"), async () => {
      await api("PUT", `/datasets/${name}/schema`, drafts[name]);
      delete drafts[name];
      notify(t("review.saved"));
      location.hash = `#/data/${name}`;
    }, ""));
  }
  const other = (event) => event.target.closest("section").replaceWith(question(name, asked, step, !numeric));
  return card(h("p", { class: "soft small plain" }, t("review.progress", asked)), h("progress", { value: asked.number - 1, max: asked.of, "aria-label": t("review.progress", asked) }),
    h("h2", {}, asked.name), h("p", {}, t("review.drafted", asked)), h("p", {}, asked.proposal ? t("review.proposal", asked) : t("review.noproposal")),
    h("div", { class: "row", style: "margin-bottom:1rem" },
      asked.proposal && h("button", { type: "button", "data-first": true, onclick: () => step({ kind: "accept" }) }, t("review.accept")),
      !asked.is_target && h("button", { type: "button", class: "quiet", "data-leave": true, onclick: () => step({ kind: "leave out" }) }, t("review.leave")),
      h("button", { type: "button", class: "quiet", "data-later": true, onclick: () => step({ kind: "later" }) }, t("review.later")),
      h("button", { type: "button", class: "quiet", onclick: other }, numeric ? t("review.tocategories") : t("review.tonumbers"))),
    form([numeric ? [field("lower", t("review.lower"), { inputmode: "decimal", required: true }), field("upper", t("review.upper"), { inputmode: "decimal", required: true })]
      : field("values", t("review.values"), { required: true }), field("source", t("review.source"), { required: true })], t("review.state"), (typed) => step({
      kind: "state", source: typed.source,
      bounds: numeric ? { lower: Number(typed.lower), upper: Number(typed.upper) } : { values: typed.values.split(",").map((value) => value.trim()).filter(Boolean) },
    })));
}
