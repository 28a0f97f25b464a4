// Plans: proposed, signed for an amount, run, and watched.
import {
  action,
  again,
  api,
  bars,
  can,
  card,
  choices,
  epsilonOf,
  facts,
  field,
  form,
  h,
  link,
  meaning,
  numberOf,
  randomKey,
  short,
  soft,
  state,
  table,
  tag,
  tiles,
  when,
} from "/page/dom.js";
import { forecastField } from "/page/data.js";

const POLL_MILLISECONDS = 1000;
const STATES = { done: "good", failed: "bad", cancelled: "bad" };
const KINDS = { train: "training", answer: "private answers", evaluate: "evaluation" };
const isOpen = (job) => ["queued", "running"].includes(job.state);

function signature(plan) {
  if (!plan.signed_by) return tag("not signed", "wait");
  return tag(plan.kind !== "answer" && plan.runs_left === 0 ? "signature used" : `signed by ${plan.signed_by}`, "good");
}

export async function list() {
  const [{ items }, jobs] = await Promise.all([api("GET", "/plans?limit=500"), api("GET", "/jobs?limit=500")]);
  return [
    h("h1", {}, "Plans"),
    h(
      "p",
      { class: "lead" },
      "A plan says what will be measured and what it costs, before a row is read. A custodian signs its hash and an amount; exactly that is run.",
    ),
    card(
      "Unfinished jobs",
      table(
        "Unfinished jobs",
        [
          [
            "Plan",
            (job) => job.plan,
            (job) => link(`#/plans/${job.plan}`, items.find((plan) => plan.id === job.plan)?.name ?? job.plan),
          ],
          ["Data set", (job) => job.dataset],
          ["By", (job) => job.account],
          ["State", (job) => job.state, progressOf],
        ],
        jobs.items.filter(isOpen),
        "No job waits or runs.",
      ),
    ),
    card(
      "All plans",
      table(
        "Plans",
        [
          ["Plan", (plan) => plan.name, (plan) => link(`#/plans/${plan.id}`, plan.name)],
          ["Kind", (plan) => KINDS[plan.kind]],
          ["Data set", (plan) => plan.dataset],
          ["Epsilon", (plan) => numberOf(plan.asked.epsilon), (plan) => short(plan.asked.epsilon), true],
          ["By", (plan) => plan.account],
          ["Made", (plan) => plan.created, (plan) => when(plan.created)],
          ["Signature", (plan) => plan.signed_by ?? "", signature],
        ],
        items,
        "No plan yet. Open a data set to make one.",
      ),
    ),
  ];
}

// -- proposing --------------------------------------------------------------------------------------------------------

export async function propose(name) {
  const [dataset, schema, estimators] = await Promise.all([
    api("GET", `/datasets/${name}`),
    api("GET", `/datasets/${name}/schema`),
    api("GET", "/estimators"),
  ]);
  const possible = estimators.filter((one) => one.task === schema.task);
  const picture = h("div", {}, meaning(1)),
    about = h("div"),
    quality = h("div");
  const describe = (title) => {
    const chosen = possible.find((one) => one.name === title);
    about.replaceChildren(
      soft(chosen.summary),
      h("details", {}, h("summary", {}, "Parameters of the estimator"), chosen.parameters.map(parameterField)),
    );
  };
  describe(possible[0].name);
  showExpected(quality, name, 10000);
  return [
    h("h1", {}, `Plan a training on ${name}`),
    tiles([
      ["Left for you", short(dataset.epsilon_for_you), `of epsilon ${short(dataset.epsilon)}`],
      ["Spent by all", short(dataset.epsilon_spent)],
    ]),
    card(
      null,
      form(
        [
          forecastField("epsilon", "Epsilon", "1", dataset, {
            help: "The loss of this release. Private predictors cost this much for each batch that they answer.",
            onvalue: (epsilon) => epsilon > 0 && picture.replaceChildren(meaning(epsilon)),
          }),
          field("name", "Name of the model", { maxlength: 100, placeholder: `${name} ${possible[0].name}` }),
          field("note", "Note", {
            rows: 2,
            maxlength: 2000,
            help: "What is it for? Everybody who may see the model reads it.",
          }),
          field("estimator", "Estimator", {
            options: possible.map((one) => [one.name, one.name]),
            onchange: (event) => describe(event.target.value),
          }),
          about,
          field("delta", "Delta", {
            value: "0",
            inputmode: "decimal",
            help: "0 is the strongest guarantee. Otherwise choose far less than one divided by the number of people.",
          }),
        ],
        "Make the plan",
        async ({ epsilon, delta, estimator, name: title, note, ...typed }) => {
          const parameters = Object.fromEntries(
            Object.entries(typed)
              .filter(([, value]) => value !== "")
              .map(([key, value]) => [key, plain(value)]),
          );
          const plan = await api("POST", `/datasets/${name}/plans`, {
            epsilon,
            delta,
            estimator,
            parameters,
            name: title,
            note,
          });
          location.hash = `#/plans/${plan.id}`;
        },
      ),
    ),
    card("What it means for one person", picture),
    quality,
  ];
}

function parameterField({ name, default: usual, options, help }) {
  const words = options.length
    ? { options: [["", `${usual} (usual)`], ...options.map((one) => [JSON.stringify(one), one])] }
    : { placeholder: usual === null ? "" : JSON.stringify(usual).replaceAll('"', "") };
  return field(name, name, { help, ...words });
}

/** A typed parameter: JSON if it is, else a text. */
function plain(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

async function showExpected(place, name, rows) {
  const expected = await api("GET", `/datasets/${name}/expected?rows=${rows}`).catch(() => null);
  if (!expected?.points.length) return;
  const figures = expected.points.map((point) => ({
    name: `epsilon ${short(point.epsilon)}`,
    value: point.skill,
    low: point.low,
    high: point.high,
    text: `${short(point.low, 2)} to ${short(point.high, 2)}`,
  }));
  const input = field("rows", "About how many rows?", {
    type: "number",
    min: 1,
    value: String(rows),
    onchange: (event) => showExpected(place, name, Number(event.target.value) || 1),
  });
  place.replaceChildren(card(expected.title, input, bars(expected.title, figures, 1), soft(expected.words)));
}

// -- one plan ---------------------------------------------------------------------------------------------------------

export async function detail(number) {
  const plan = await api("GET", `/plans/${number}`);
  const [dataset, jobs] = await Promise.all([
    api("GET", `/datasets/${plan.dataset}`),
    api("GET", `/jobs?plan=${number}`),
  ]);
  const epsilon = numberOf(plan.asked.epsilon),
    rest = dataset.epsilon_for_you;
  return [
    h("div", { class: "row spread" }, h("h1", {}, plan.name), signature(plan)),
    h(
      "p",
      { class: "lead" },
      KINDS[plan.kind],
      " on ",
      link(`#/data/${plan.dataset}`, plan.dataset),
      " by ",
      plan.account,
      ", ",
      when(plan.created),
    ),
    tiles([
      [
        plan.kind === "answer" ? "A batch costs at most" : "Costs epsilon",
        short(epsilon),
        plan.asked.delta !== "0" && Number(plan.asked.delta) ? `delta ${plan.asked.delta}` : "",
      ],
      ["Left for you", short(rest), `of ${short(dataset.epsilon)}`],
      plan.kind !== "answer" && plan.runs_left !== 0 && ["Left afterwards", short(Math.max(rest - epsilon, 0))],
      plan.kind === "answer" &&
        plan.signed_by && ["Left of the signature", epsilonOf(plan.remaining), `of ${short(plan.total_epsilon)}`],
      plan.kind !== "answer" && plan.signed_by && ["Runs left", String(plan.runs_left), `of ${plan.runs}`],
    ]),
    plan.warnings.map((words) =>
      h("p", { class: "warning-box", role: "note" }, `${words.charAt(0).toUpperCase()}${words.slice(1)}`),
    ),
    jobs.items.map((job) => jobCard(job, plan)),
    decisionCard(plan),
    plan.kind !== "answer" && card("What it means for one person", meaning(epsilon)),
    card(
      "What will be measured",
      plan.words
        ? explanation(plan.words)
        : h("p", {}, "Nothing yet. Each batch of queries that the predictor answers is charged before it is computed."),
      facts([
        ["estimator", plan.kind !== "evaluate" && plan.estimator],
        ["model", plan.model && link(`#/models/${plan.model}`, plan.model)],
        ["note", plan.note],
        ...Object.entries(plan.asked.parameters).map(([name, value]) => [name, JSON.stringify(value)]),
        ["hash", h("span", { class: "mono" }, plan.fingerprint)],
      ]),
      plan.body &&
        h("details", {}, h("summary", {}, "As JSON"), h("pre", { tabindex: 0 }, JSON.stringify(plan.body, null, 1))),
    ),
  ];
}

function explanation(words) {
  const lines = words.split("\n").filter((line) => line.trim());
  const isStep = (line) => line.startsWith("  - ");
  return h(
    "div",
    {},
    lines.filter((line) => !isStep(line)).map((line) => h("p", {}, line)),
    h(
      "ul",
      {},
      lines.filter(isStep).map((line) => h("li", {}, line.slice(4))),
    ),
  );
}

/** Who has to act next: a custodian who signs an amount, or whoever runs it. */
function decisionCard(plan) {
  if (!plan.signed_by) {
    if (!can("sign")) return card("Next", h("p", {}, "Waiting for a custodian's signature."));
    return signCard(plan);
  }
  const allowed =
    plan.kind === "answer"
      ? `${plan.signed_by} allowed epsilon ${short(plan.total_epsilon)} for all batches together, asked by ${plan.askers ? plan.askers.join(", ") : "everybody who may ask"}.`
      : `${plan.signed_by} allowed ${plan.runs} ${plan.runs === 1 ? "run" : "runs"}, so at most epsilon ${short(plan.runs * numberOf(plan.asked.epsilon))}.`;
  const used =
    plan.runs_left === 0 &&
    h(
      "p",
      { class: "soft" },
      plan.kind === "answer"
        ? "The predictor is made."
        : "The signature is used up. Make another plan for further runs.",
    );
  return card(
    "Signature",
    h("p", {}, allowed),
    used ||
      (can("run") &&
        h(
          "p",
          {},
          action(
            "Run",
            async () => {
              await api("POST", `/plans/${plan.id}/jobs`, undefined, { "Idempotency-Key": randomKey() });
              again();
            },
            "",
          ),
        )),
  );
}

function signCard(plan) {
  const epsilon = numberOf(plan.asked.epsilon),
    sum = h("p", { class: "beside small", role: "status" });
  const say = (total) =>
    sum.replaceChildren(total > 0 ? `Your signature allows at most epsilon ${short(total)} in all.` : "");
  say(epsilon);
  const sign = async (typed) => {
    await api("POST", `/plans/${plan.id}/signature`, { fingerprint: plan.fingerprint, ...typed });
    again();
  };
  if (plan.kind !== "answer") {
    return card(
      "Sign",
      form(
        field("runs", "Number of runs", {
          type: "number",
          min: 1,
          max: 1000,
          value: "1",
          required: true,
          after: sum,
          help: "Each run costs the epsilon above.",
          oninput: (event) => say(epsilon * Number(event.target.value)),
        }),
        "Sign this hash and amount",
        ({ runs }) => sign({ runs: Number(runs) }),
      ),
    );
  }
  const known = [...new Set([plan.account, state.me.name])];
  return card(
    "Sign",
    form(
      [
        field("total_epsilon", "Total epsilon of all batches", {
          value: String(short(epsilon)),
          inputmode: "decimal",
          required: true,
          after: sum,
          oninput: (event) => say(Number(event.target.value)),
        }),
        choices(
          "askers",
          "Who may ask?",
          known.map((name) => [name, name]),
          (name) => name === plan.account,
        ),
        field("others", "Other accounts", {
          help: "Names, separated by spaces. If nobody is named, everybody may ask.",
        }),
      ],
      "Sign this hash and amount",
      ({ total_epsilon, askers, others }) => {
        const names = [...askers, ...others.split(/[\s,]+/).filter(Boolean)];
        return sign({ total_epsilon, askers: names.length ? names : ["*"] });
      },
    ),
  );
}

// -- jobs -------------------------------------------------------------------------------------------------------------

function duration(seconds) {
  const whole = Math.round(seconds),
    two = (value) => String(value).padStart(2, "0");
  return whole < 3600
    ? `${Math.floor(whole / 60)}:${two(whole % 60)}`
    : `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function progressOf(job) {
  if (job.state === "queued")
    return h(
      "span",
      {},
      tag("waiting", "wait"),
      job.place === 1 ? " next in the queue" : ` place ${job.place} in the queue`,
    );
  if (job.state === "running")
    return h("span", {}, tag("running", "wait"), ` for ${duration(job.seconds ?? 0)}`, job.detail && `, ${job.detail}`);
  return tag(job.state, STATES[job.state]);
}

/** A job, which is asked for its progress while it is unfinished. */
function jobCard(job, plan) {
  const place = h("section", { class: "card", "aria-label": "Run" });
  const draw = (now) => {
    const cancel =
      isOpen(now) &&
      can("run") &&
      action(
        "Cancel",
        async () => {
          await api("DELETE", `/jobs/${job.id}`);
          again();
        },
        "danger",
      );
    const done =
      now.state === "done" &&
      h(
        "a",
        { class: "button", href: `#/models/${plan.kind === "evaluate" ? plan.model : job.id}` },
        plan.kind === "evaluate" ? "Open the evaluated model" : "Open the model",
      );
    const isTold = now.detail && !isOpen(now) && now.detail !== now.message;
    place.replaceChildren(
      h(
        "div",
        { class: "row spread" },
        h(
          "div",
          {},
          h("span", { role: "status" }, progressOf(now)),
          " ",
          h("span", { class: "soft small" }, "asked for by ", now.account, ", ", when(now.created)),
        ),
        done || cancel,
      ),
      now.message && now.message !== now.state ? h("p", {}, now.message) : "",
      isTold ? soft(now.detail) : "",
    );
  };
  const poll = async () => {
    if (!location.hash.endsWith(plan.id)) return;
    const now = await api("GET", `/jobs/${job.id}`).catch(() => job);
    if (!isOpen(now)) again();
    else {
      draw(now);
      setTimeout(poll, POLL_MILLISECONDS);
    }
  };
  draw(job);
  if (isOpen(job)) setTimeout(poll, POLL_MILLISECONDS);
  return place;
}
