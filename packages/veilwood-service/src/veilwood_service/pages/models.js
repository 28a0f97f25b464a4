// Plans, jobs and models.
import { action, api, can, card, cellsOf, field, form, h, key, notify, save, t, tag, when } from "/page/dom.js";
import { curve, effects, odds } from "/page/charts.js";

const again = () => window.dispatchEvent(new HashChangeEvent("hashchange"));
const ESTIMATORS = ["private-forest", "random-trees", "median-forest", "greedy-forest", "matrix-forest", "MatrixForestPredictor", "MatrixForestPredictor subsample"];
const GOOD = { done: "good", failed: "bad", cancelled: "bad" };

const titled = (made) => (["evaluate", "evaluation"].includes(made.kind) ? t("model.evaluation.title") : made.estimator);

export async function plans() {
  const found = (await api("GET", "/plans")).reverse();
  return [h("h1", {}, t("plan.title")), h("p", { class: "lead" }, t("plan.lead")),
    card(found.length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("plan.title") }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("what")), h("th", {}, t("nav.data")), h("th", {}, t("loss")), h("th", {}, t("by")), h("th", {}, t("state")))),
      h("tbody", {}, found.map((plan) => h("tr", {}, h("td", {}, h("a", { href: `#/plans/${plan.id}` }, titled(plan))), h("td", {}, plan.dataset),
        h("td", {}, t("cost", plan.asked)), h("td", {}, plan.account), h("td", {}, plan.signed_by ? tag(t("plan.signed", { by: plan.signed_by }), "good") : tag(t("plan.unsigned"), "wait"))))))) : h("p", {}, t("plan.none")))];
}

function oddsFigure(epsilon) {
  const after = (100 / (1 + Math.exp(-epsilon))).toFixed(epsilon > 5 ? 1 : 0);
  const words = t("plan.odds.caption", { after });
  return h("figure", {}, odds(epsilon, words), h("figcaption", {}, words));
}

export async function propose(name) {
  const found = await api("GET", `/datasets/${name}`);
  const picture = h("div", {}, oddsFigure(1)), quality = h("div");
  const ask = (event) => { const value = Number(event.target.value); if (value > 0) picture.replaceChildren(oddsFigure(value)); };
  api("GET", `/datasets/${name}/expected`).then((expected) => {
    if (expected.points.length) quality.replaceChildren(h("h2", {}, expected.title), h("figure", {},
      curve(expected.points, { title: expected.words, xName: "epsilon", yName: expected.axis, logarithmic: true }), h("figcaption", {}, expected.words)));
  }).catch(() => {});
  return [h("h1", {}, t("plan.new", { name })), h("p", { class: "lead" }, t("plan.left", { left: found.remaining_for_you })),
    card(form([field("estimator", t("plan.estimator"), { options: ESTIMATORS.map((one) => [one, t(`estimator.${one}`)]), value: ESTIMATORS[0] }),
      field("epsilon", t("plan.epsilon"), { value: "1", inputmode: "decimal", required: true, oninput: ask }),
      field("delta", t("plan.delta"), { value: "0", inputmode: "decimal", help: t("plan.delta.help") })], t("plan.go"), async (asked) => {
      const [estimator, mode] = asked.estimator.split(" ");
      const made = await api("POST", `/datasets/${name}/plans`, { ...asked, estimator, parameters: mode ? { mode } : {} });
      location.hash = `#/plans/${made.id}`;
    })), card(h("h2", {}, t("plan.odds")), picture), card(quality)];
}

/** The text of a plan: its first word of each line in bold where it names a number of rows, its steps as a list. */
function inWords(words) {
  const steps = words.split("\n").filter((line) => line.startsWith("  - ")).map((line) => h("li", {}, line.slice(4)));
  const lines = words.split("\n").filter((line) => line.trim() && !line.startsWith("  - ")).map((line) => {
    const [, lead, rest] = /^(At [\d,]+ rows:)?(.*)$/.exec(line);
    return h("p", { class: "plain" }, lead && h("strong", {}, lead), rest);
  });
  return h("div", {}, lines, steps.length > 0 && h("ul", {}, steps));
}

export async function plan(number) {
  const found = await api("GET", `/plans/${number}`);
  const jobs = (await api("GET", "/jobs")).filter((job) => job.plan === number).reverse();
  if (jobs.some((job) => job.state === "queued" || job.state === "running")) setTimeout(() => location.hash === `#/plans/${number}` && again(), 700);
  return [h("div", { class: "row spread" }, h("h1", {}, titled(found)), found.signed_by ? tag(t("plan.signed", { by: found.signed_by }), "good") : tag(t("plan.unsigned"), "wait")),
    h("p", { class: "lead" }, h("a", { href: `#/data/${found.dataset}` }, found.dataset), " · ", t("cost", found.asked), " · ", found.account, " · ", when(found.created)),
    found.kind !== "answer" && card(h("h2", {}, t("plan.odds")), oddsFigure(Number(found.asked.epsilon))),
    card(h("h2", {}, t("plan.words")), found.words ? inWords(found.words) : h("p", {}, t("plan.answer", found.asked)),
      Object.keys(found.asked.parameters).length > 0 && h("dl", { class: "facts" }, Object.entries(found.asked.parameters).map(([name, value]) => [h("dt", {}, name), h("dd", {}, JSON.stringify(value))])),
      h("p", { class: "mono" }, `${t("plan.hash")}: ${found.fingerprint}`),
      h("div", { class: "row" }, !found.signed_by && can("sign") && action(t("plan.sign"), async () => { await api("POST", `/plans/${number}/signature`, { fingerprint: found.fingerprint }); again(); }, ""),
        found.signed_by && can("run") && action(t("plan.run"), async () => { await api("POST", `/plans/${number}/jobs`, undefined, { "Idempotency-Key": key() }); again(); }, ""),
        !found.signed_by && !can("sign") && h("p", { class: "soft" }, t("plan.wait")))),
    jobs.map((job) => card(h("div", { class: "row spread" }, h("div", { class: "row" }, tag(t(`job.${job.state}`), GOOD[job.state] ?? "wait"), when(job.created)),
      job.state === "done" && h("a", { class: "button", href: `#/models/${job.id}` }, t(`model.${found.kind === "train" ? "trained" : found.kind === "answer" ? "answering" : "evaluation"}`)),
      ["queued", "running"].includes(job.state) && can("run") && action(t("job.cancel"), async () => { await api("DELETE", `/jobs/${job.id}`); again(); }, "danger")),
    ["queued", "running"].includes(job.state) && h("progress", { "aria-label": t(`job.${job.state}`) }), job.message && h("p", {}, job.message), job.detail && h("p", { class: "soft small" }, job.detail)))];
}

export async function list() {
  const found = (await api("GET", "/models")).reverse();
  return [h("h1", {}, t("model.title")), h("p", { class: "lead" }, t("model.lead")),
    found.length ? h("div", { class: "grid" }, found.map((model) => h("article", { class: "card" }, h("div", { class: "row spread" }, h("h2", {}, h("a", { href: `#/models/${model.id}` }, titled(model))), tag(t(`model.${model.kind}`), "good")),
      h("p", { class: "soft small", style: "margin:0" }, model.dataset, " · ", when(model.created)), model.certificate && h("p", { style: "margin:.4rem 0 0" }, t("cost", model.certificate))))) : h("p", {}, t("model.none"))];
}

export async function one(number) {
  const model = await api("GET", `/models/${number}`);
  const head = [h("div", { class: "row spread" }, h("h1", {}, titled(model)), tag(t(`model.${model.kind}`), "good")),
    h("p", { class: "lead" }, h("a", { href: `#/data/${model.dataset}` }, model.dataset), " · ", when(model.created))];
  const schema = await api("GET", `/datasets/${model.dataset}/schema`);
  if (model.kind === "answering") return [...head, asking(number, schema)];
  const certificate = guarantee(model, number);
  if (model.kind === "evaluation") return [...head, quality(model.result), certificate];
  const learned = await api("GET", `/models/${number}/effects`).catch(() => null);
  return [...head, learned && learnedCard(learned), predictCard(number, schema), csvCard(number), can("plan") && evaluateCard(number), certificate];
}

function guarantee(model, number) {
  const facts = model.certificate;
  return card(h("h2", {}, t("model.guarantee")), oddsFigure(facts.epsilon), h("dl", { class: "facts" },
    [["epsilon", facts.epsilon], ["delta", facts.delta], ["unit", facts.unit], ["adjacency", facts.adjacency], ["plan", facts.plan_hash], ["ledger", `${facts.ledger}, ${facts.ledger_entry}`]]
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
  h("details", {}, h("summary", {}, t("model.certificate")), h("p", { class: "small" }, facts.mechanism), h("ul", {}, facts.assumptions.map((one) => h("li", {}, one))),
    certificateButton(facts, number)),
  model.kind === "trained" && h("p", { class: "row" }, h("a", { class: "button quiet", href: `/v1/models/${number}/report`, target: "_blank" }, t("model.report")), h("a", { class: "button quiet", href: `/v1/models/${number}/file` }, t("model.download")), h("a", { class: "button quiet", href: `/v1/models/${number}/onnx` }, t("model.onnx"))));
}

const certificateButton = (facts, name) => action(t("model.certificate.save"), () => save(new Blob([JSON.stringify(facts, null, 2)], { type: "application/json" }), `${name}.json`));

function learnedCard(learned) {
  const place = h("figure");
  let column = 0, output = 0;
  const draw = () => {
    const one = learned.main[column];
    const title = `${one.column}: ${learned.unit}`;
    const pick = (rows) => rows.map((row) => (Array.isArray(row) ? row[output] : row));
    place.replaceChildren(effects(one.groups, pick(one.effect), pick(one.error), title), h("figcaption", {}, title));
  };
  if (!learned.main.length) return null;
  draw();
  const choose = (words, options, act) => h("label", { style: "flex:1 1 12rem" }, words, h("select", { onchange: (event) => { act(Number(event.target.value)); draw(); } }, options.map((shown, i) => h("option", { value: i }, shown))));
  return card(h("h2", {}, t("model.effects")), h("p", { class: "soft small" }, t("model.effects.lead", { unit: learned.unit })), h("div", { class: "row" },
    choose(t("model.effects.column"), learned.main.map((one) => one.column), (i) => { column = i; }),
    (learned.outputs ?? []).length > 1 && choose(t("model.effects.output"), learned.outputs, (i) => { output = i; })), place);
}

function predictCard(number, schema) {
  const place = h("div", { "aria-live": "polite" });
  const columns = schema.columns.filter((column) => column.name !== schema.target);
  const fields = columns.map((column) => column.kind === "categorical"
    ? field(column.name, column.name, { options: [...(column.nullable ? [["", "–"]] : []), ...column.values.map((value) => [value, value]), ...(column.other ? [[column.other, column.other]] : [])] })
    : field(column.name, column.name, { type: "number", step: "any", required: !column.nullable, value: (Number(column.lower) + Number(column.upper)) / 2 }));
  return card(h("h2", {}, t("model.predict")), form([h("div", { class: "grid", style: "gap:0 1rem" }, fields)], t("model.predict.go"), async (typed) => {
    const row = Object.fromEntries(columns.map((column) => [column.name, typed[column.name] === "" ? null : column.kind === "categorical" ? typed[column.name] : Number(typed[column.name])]));
    const found = await api("POST", `/models/${number}/predict`, { rows: [row] });
    const target = schema.columns.find((column) => column.name === schema.target);
    place.replaceChildren(h("p", {}, h("strong", {}, `${schema.target}: ${found.predictions[0]}`)), found.probabilities
      ? effects(target.values.concat(target.other ? [target.other] : []).map(String), found.probabilities[0], [], t("model.probability"), true) : "");
  }), place);
}

function csvCard(number) {
  const place = h("div", { role: "status" });
  return card(h("h2", {}, t("model.csv")), h("label", {}, t("model.csv.lead"), h("input", { type: "file", accept: ".csv", onchange: async (event) => {
    place.replaceChildren(h("progress", {}));
    try { save(await api("POST", `/models/${number}/predict.csv`, event.target.files[0], { "Content-Type": "text/csv" }), "predictions.csv"); } catch (error) { notify(error.message, true); }
    place.replaceChildren();
  } })), place);
}

function evaluateCard(number) {
  return card(h("h2", {}, t("model.evaluate")), h("p", { class: "soft small" }, t("model.evaluate.lead")), form([field("epsilon", t("plan.epsilon"), { value: "0.1", inputmode: "decimal" })], t("model.evaluate.go"), async (asked) => {
    const made = await api("POST", `/models/${number}/evaluations`, { epsilon: Number(asked.epsilon) });
    location.hash = `#/plans/${made.id}`;
  }));
}

const shown = (value) => (value === null ? "?" : value.toFixed(3));

function quality(result) {
  const scores = Object.entries(result.scores);
  const curves = (Array.isArray(result.calibration) ? result.calibration : []).filter((point) => point.happened.value !== null);
  return [card(h("h2", {}, t("model.quality")), h("table", {}, h("tbody", {}, scores.map(([name, one]) => h("tr", {}, h("td", {}, name.replaceAll("_", " ")), h("td", { class: "number" }, shown(one.value)),
    h("td", { class: "soft" }, `${shown(one.low)} – ${shown(one.high)}`)))))),
  curves.length > 1 && card(h("h2", {}, t("model.calibration")), h("figure", {}, curve(curves.map((point) => ({ x: point.predicted, y: point.happened.value, low: point.happened.low, high: point.happened.high })), { title: t("model.calibration"), xName: t("model.predicted"), yName: t("model.happened"), diagonal: true }), h("figcaption", {}, t("model.calibration.caption"))))];
}

/** Rows of a CSV text. The service reads numbers and missing values as the schema says. */
function rowsOf(text, separator) {
  const [header, ...lines] = cellsOf(text, separator);
  return lines.map((cells) => Object.fromEntries(header.map((name, i) => [name, cells[i] || null])));
}

function asking(number, schema) {
  const separator = schema.dialect?.sep ?? ",";
  const example = [...new Set(schema.columns.filter((column) => column.name !== schema.target).map((column) => column.of ?? column.name))].join(separator);
  const place = h("div", { "aria-live": "polite" });
  let last = null;
  return card(h("h2", {}, t("ask.title")), h("p", { class: "soft small" }, t("ask.lead")), form([field("rows", t("ask.rows"), { rows: 8, required: true, class: "mono", help: t("ask.columns", { example }) }), field("epsilon", t("ask.price"), { inputmode: "decimal" })], t("ask.quote"), async (asked) => {
    last = { rows: rowsOf(asked.rows, separator), epsilon: asked.epsilon ? Number(asked.epsilon) : null };
    const found = await api("POST", `/models/${number}/quote`, last);
    place.replaceChildren(card(h("p", {}, found.answered_before ? t("ask.before") : t("ask.cost", { ...found, error: Math.sqrt(found.expected_squared_error).toPrecision(3) })), action(t("ask.go"), async () => {
      const answer = await api("POST", `/models/${number}/answers`, last);
      place.replaceChildren(card(h("ol", {}, answer.labels.map((label) => h("li", {}, String(label)))), h("p", { class: "soft small" }, t("ask.keep")), certificateButton(answer.certificate, `${number}-${answer.certificate.ledger_entry}`)));
    }, "")));
  }), place);
}
