// Models with their quality, evaluations, predictions and guarantee; private answers.
import {
  again,
  api,
  action,
  bars,
  can,
  card,
  cellsOf,
  epsilonOf,
  facts,
  field,
  fileField,
  form,
  h,
  link,
  meaning,
  notify,
  save,
  saveJson,
  short,
  soft,
  table,
  tag,
  tiles,
  when,
} from "/page/dom.js";

const MEASURES = ["accuracy", "r2"];
const KINDS = { trained: "model", answering: "private answers", evaluation: "evaluation" };

/** The measure by which models are compared: accuracy of classes, R² of numbers. */
const measureOf = (quality) => MEASURES.find((name) => quality[name] !== undefined && quality[name] !== null);
const measured = (model) => quality(model, (name, value) => `${name} ${value.toFixed(3)}`);
const quality = (model, say) =>
  measureOf(model.quality) ? say(measureOf(model.quality), model.quality[measureOf(model.quality)]) : null;

export async function list() {
  const { items, next } = await api("GET", "/models?limit=500");
  const models = items.filter((one) => one.kind !== "evaluation");
  return [
    h("h1", {}, "Models"),
    h(
      "p",
      { class: "lead" },
      "Everybody with an account may see released models. Predictions are free; private answers are charged.",
    ),
    card(
      null,
      table(
        "Models",
        [
          [
            "Name",
            (one) => one.name,
            (one) => [
              link(`#/models/${one.id}`, one.name),
              one.note && h("div", { class: "soft small clipped" }, one.note),
            ],
          ],
          ["Data set", (one) => one.dataset, (one) => link(`#/data/${one.dataset}`, one.dataset)],
          [
            "Estimator",
            (one) => one.estimator,
            (one) => [one.estimator, one.kind === "answering" && h("div", {}, tag(KINDS.answering))],
          ],
          ["Quality", (one) => quality(one, (_, value) => value) ?? -1, (one) => measured(one) ?? "–", true],
          [
            "Epsilon",
            (one) => one.certificate?.epsilon ?? 0,
            (one) => (one.certificate ? short(one.certificate.epsilon) : "by batch"),
            true,
          ],
          ["Owner", (one) => one.account],
          ["Made", (one) => one.created, (one) => when(one.created)],
        ],
        models,
        "Nothing was released yet. Plan a training on a data set.",
      ),
      next && soft("The newest 500 releases. All: veilwood remote models."),
    ),
  ];
}

export async function detail(number) {
  const model = await api("GET", `/models/${number}`);
  if (model.kind === "evaluation") {
    location.hash = `#/models/${model.evaluated}`;
    return [];
  }
  const [schema, evaluations, learned] = await Promise.all([
    api("GET", `/datasets/${model.dataset}/schema`).catch(() => null),
    api("GET", `/models/${number}/evaluations`),
    model.kind === "trained" && model.estimator.startsWith("PrivateForest")
      ? api("GET", `/models/${number}/effects`).catch(() => null)
      : null,
  ]);
  const head = [
    h("div", { class: "row spread" }, h("h1", {}, model.name), tag(KINDS[model.kind], "good")),
    h("p", { class: "lead" }, model.note || "No note."),
    tiles([
      model.certificate && [
        "Epsilon",
        short(model.certificate.epsilon),
        model.certificate.delta ? `delta ${model.certificate.delta}` : "",
      ],
      model.kind === "trained" && [
        "Quality",
        quality(model, (_, value) => value.toFixed(3)) ?? "–",
        measureOf(model.quality) ?? (evaluations.length ? "hidden by the noise" : "not measured yet"),
      ],
      ["Data set", link(`#/data/${model.dataset}`, model.dataset)],
      ["Owner", model.account, when(model.created)],
    ]),
    nameCard(model),
  ];
  if (model.kind === "answering") return [...head, schema && askCard(number, schema)];
  return [
    ...head,
    schema && predictCard(number, schema),
    csvCard(number),
    evaluationCard(number, evaluations),
    learned?.main.length > 0 && learnedCard(learned),
    guaranteeCard(model),
  ];
}

function nameCard(model) {
  return h(
    "div",
    { class: "row" },
    link(`#/plans/${model.plan}`, "Its plan and run"),
    can("plan") &&
      h(
        "details",
        { class: "inline" },
        h("summary", {}, "Change name and note"),
        form(
          [
            field("name", "Name", { value: model.name, required: true, maxlength: 100 }),
            field("note", "Note", { value: model.note, rows: 3, maxlength: 2000 }),
          ],
          "Save",
          async (typed) => {
            await api("PATCH", `/models/${model.id}`, typed);
            again();
          },
        ),
      ),
  );
}

function guaranteeCard({ id, certificate, kind }) {
  return card(
    "Guarantee",
    meaning(certificate.epsilon),
    facts([
      ["epsilon", short(certificate.epsilon)],
      ["delta", String(certificate.delta)],
      ["unit", certificate.unit],
      ["adjacency", certificate.adjacency],
      ["ledger", `${certificate.ledger}, entry ${certificate.ledger_entry}`],
      ["hash of the plan", h("span", { class: "mono" }, certificate.plan_hash)],
    ]),
    h(
      "details",
      {},
      h("summary", {}, "Mechanism and assumptions"),
      h("p", { class: "small" }, certificate.mechanism),
      h(
        "ul",
        {},
        certificate.assumptions.map((words) => h("li", {}, words)),
      ),
    ),
    h(
      "p",
      { class: "row" },
      action("Save the certificate", () => saveJson(certificate, `${id}.json`)),
      kind === "trained" &&
        [["report", "Report"], can("ask") && ["file", "Download"], can("ask") && ["onnx", "ONNX"]]
          .filter(Boolean)
          .map(([path, words]) =>
            h(
              "a",
              { class: "button quiet", href: `/v1/models/${id}/${path}`, target: path === "report" ? "_blank" : null },
              words,
            ),
          ),
    ),
  );
}

function evaluationCard(number, evaluations) {
  const names = [...new Set(evaluations.flatMap((one) => Object.keys(one.result.scores)))];
  const score = (name) => (one) => one.result.scores[name]?.value ?? null;
  const range = (name) => (one) => {
    const found = one.result.scores[name];
    return found && found.value !== null
      ? [found.value.toFixed(3), h("div", { class: "soft small" }, `${short(found.low, 3)} to ${short(found.high, 3)}`)]
      : "–";
  };
  const points = (evaluations[0]?.result.calibration ?? []).filter((point) => point.happened.value !== null);
  return card(
    "Measured quality",
    table(
      "Evaluations",
      [
        ["When", (one) => one.created, (one) => link(`#/plans/${one.plan}`, when(one.created))],
        ["Epsilon", (one) => one.certificate.epsilon, (one) => short(one.certificate.epsilon), true],
        ...names.map((name) => [name.replaceAll("_", " "), score(name), range(name), true]),
        ["Certificate", null, (one) => action("Save", () => saveJson(one.certificate, `${one.id}.json`))],
      ],
      evaluations,
      "Not measured yet.",
    ),
    evaluations.length > 0 &&
      soft("Measured on rows of the data set, which the model was trained on. Expect somewhat less on new rows."),
    points.length > 1 &&
      h(
        "details",
        {},
        h("summary", {}, "Calibration"),
        bars(
          "Calibration",
          points.map((point) => ({
            name: `predicted ${short(point.predicted)}`,
            value: point.happened.value,
            low: point.happened.low,
            high: point.happened.high,
            mark: point.predicted,
            text: `came true ${point.happened.value.toFixed(2)}`,
          })),
          1,
        ),
        soft("At the mark, what was predicted is what came true."),
      ),
    can("plan") &&
      h(
        "details",
        { open: !evaluations.length },
        h("summary", {}, "Evaluate on the private rows"),
        soft("An evaluation is a release of its own: it is planned, signed and charged."),
        form(
          field("epsilon", "Epsilon", { value: "0.1", inputmode: "decimal", required: true }),
          "Plan an evaluation",
          async (typed) => {
            const plan = await api("POST", `/models/${number}/evaluations`, typed);
            location.hash = `#/plans/${plan.id}`;
          },
          "quiet",
        ),
      ),
  );
}

function learnedCard(learned) {
  const place = h("div");
  let column = 0,
    output = 0;
  const pick = (rows, i) => (Array.isArray(rows[i]) ? rows[i][output] : rows[i]);
  const draw = () => {
    const shown = learned.main[column];
    place.replaceChildren(
      bars(
        `${shown.column}: ${learned.unit}`,
        shown.groups.map((name, i) => {
          const value = pick(shown.effect, i),
            error = pick(shown.error, i) ?? 0;
          return {
            name,
            value,
            low: value - error,
            high: value + error,
            text: `${short(value, 2)} ± ${short(error, 2)}`,
          };
        }),
      ),
    );
  };
  const choose = (words, options, act) =>
    h(
      "label",
      {},
      h("span", {}, words),
      h(
        "select",
        {
          onchange: (event) => {
            act(Number(event.target.value));
            draw();
          },
        },
        options.map((shown, i) => h("option", { value: i }, shown)),
      ),
    );
  draw();
  return card(
    "What it has learned",
    soft(`From released values, with the range due to noise and sampling. ${learned.unit}.`),
    h(
      "div",
      { class: "row" },
      choose(
        "Column",
        learned.main.map((one) => one.column),
        (i) => {
          column = i;
        },
      ),
      (learned.outputs ?? []).length > 1 &&
        choose("Class", learned.outputs, (i) => {
          output = i;
        }),
    ),
    place,
  );
}

// -- predictions and private answers ------------------------------------------------------------------------------------

const inputsOf = (schema) => schema.columns.filter((column) => column.name !== schema.target);

function predictCard(number, schema) {
  const place = h("div", { "aria-live": "polite" }),
    columns = inputsOf(schema),
    isCategory = (column) => column.kind === "categorical";
  const fields = columns.map((column) =>
    isCategory(column)
      ? field(column.name, column.name, {
          options: [
            ...(column.nullable ? [["", "missing"]] : []),
            ...[...column.values, ...(column.other ? [column.other] : [])].map((value) => [value, value]),
          ],
        })
      : field(column.name, column.name, {
          type: "number",
          step: "any",
          required: !column.nullable,
          value: (Number(column.lower) + Number(column.upper)) / 2,
        }),
  );
  return card(
    "Predict for one row",
    form(h("div", { class: "columns" }, fields), "Predict", async (typed) => {
      const row = Object.fromEntries(
        columns.map((column) => [
          column.name,
          typed[column.name] === "" ? null : isCategory(column) ? typed[column.name] : Number(typed[column.name]),
        ]),
      );
      const { predictions, probabilities } = await api("POST", `/models/${number}/predict`, { rows: [row] });
      const target = schema.columns.find((column) => column.name === schema.target),
        classes = [...(target.values ?? []), ...(target.other ? [target.other] : [])];
      place.replaceChildren(
        h("p", { class: "answer" }, `${schema.target}: `, h("strong", {}, String(predictions[0]))),
        probabilities
          ? bars(
              "Probability",
              classes.map((name, i) => ({
                name: String(name),
                value: probabilities[0][i],
                text: `${(100 * probabilities[0][i]).toFixed(1)} %`,
              })),
              1,
            )
          : "",
      );
    }),
    place,
  );
}

const csvCard = (number) =>
  card(
    "Predict for a CSV file",
    fileField("The answer is a CSV file, in the same order", ".csv", async (file) => {
      save(await api("POST", `/models/${number}/predict.csv`, file, { "Content-Type": "text/csv" }), "predictions.csv");
    }),
  );

/** Rows of a CSV text. The service reads numbers and missing values as the schema says. */
function rowsOf(text, separator) {
  const [header, ...lines] = cellsOf(text, separator);
  return lines.map((cells) => Object.fromEntries(header.map((name, i) => [name, cells[i] || null])));
}

function askCard(number, schema) {
  const separator = schema.dialect?.sep ?? ",",
    place = h("div", { "aria-live": "polite" });
  const example = [...new Set(inputsOf(schema).map((column) => column.of ?? column.name))].join(separator);
  return card(
    "Ask privately",
    soft("Queries are public. Answers are charged before they are computed. Repeating a batch is free."),
    form(
      [
        field("rows", "Queries, as CSV with a header", {
          rows: 8,
          required: true,
          class: "mono",
          help: `The header names the columns: ${example}`,
        }),
        field("epsilon", "Epsilon of this batch", { inputmode: "decimal", help: "Empty: the signed one." }),
      ],
      "Quote",
      async (typed) => {
        const batch = { rows: rowsOf(typed.rows, separator), epsilon: typed.epsilon || null };
        const quote = await api("POST", `/models/${number}/quote`, batch);
        const words = quote.answered_before
          ? "Answered before: free."
          : `Costs epsilon ${short(quote.epsilon)}, with an expected error of ${short(Math.sqrt(quote.expected_squared_error))} rows in each count. ${epsilonOf(quote.remaining)} is left for you.`;
        place.replaceChildren(
          card(
            null,
            h("p", {}, words),
            h(
              "p",
              {},
              action(
                quote.answered_before ? "Show the answers" : "Charge and answer",
                async () => {
                  const answered = await api("POST", `/models/${number}/answers`, batch);
                  place.replaceChildren(
                    card(
                      "Answers",
                      h(
                        "ol",
                        {},
                        answered.labels.map((label) => h("li", {}, String(label))),
                      ),
                      soft("Keep the certificate: after a restore of the service it proves what was charged."),
                      action("Save the certificate", () => saveJson(answered.certificate, `${number}-answers.json`)),
                    ),
                  );
                  notify("Answered.");
                },
                "",
              ),
            ),
          ),
        );
      },
    ),
    place,
  );
}
