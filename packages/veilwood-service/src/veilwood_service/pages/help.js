// Help: how a release comes about, the words, and the routes of the service from its OpenAPI document.
import { card, facts, h, link, state } from "/page/dom.js";

const STEPS = [
  [
    "Register",
    "A custodian registers a data set with the population that it protects and a budget, uploads the table, and reviews its schema. The schema is public knowledge; the rows stay private.",
  ],
  [
    "Plan",
    "An analyst proposes a plan: what will be measured, and what it costs. No row is read, and nothing is spent.",
  ],
  [
    "Sign",
    "A custodian reads the plan and signs its hash, for a number of runs or, for private predictors, a total epsilon and the accounts that may ask.",
  ],
  [
    "Run",
    "The job waits for its turn, charges the ledger, and then reads the rows. Accounts take turns. A cancelled job that has charged stays spent.",
  ],
  [
    "Use",
    "Predictions of a trained model are free, for ever. Private predictors charge each batch of queries. An evaluation measures a model on the private rows, and is charged too.",
  ],
];
const WORDS = [
  [
    "epsilon",
    "The privacy loss of a release. The odds of any conclusion about one person change by at most a factor of exp(epsilon): 2.7 at 1, 148 at 5. At most 2 is usual.",
  ],
  ["delta", "A probability with which the guarantee may be weaker. 0 is the strongest."],
  ["budget", "The limit of all losses of a data set together. It cannot be raised."],
  ["allowance", "A narrower limit: of one account, or in each year or month."],
  ["ledger", "The record of all charges of a data set, in a chain of hashes."],
  ["certificate", "The guarantee of one release. Keep it: after a restore it proves what was charged."],
  ["frozen", "A restored ledger may lack releases. Nothing is spent until a custodian has charged them."],
];

export function guide() {
  return [
    h("h1", {}, "Help"),
    h("p", { class: "lead" }, "From private rows to a model that everybody may see, in five steps."),
    card(
      "How a release comes about",
      h(
        "ol",
        { class: "steps" },
        STEPS.map(([name, words]) => h("li", {}, h("strong", {}, name), ". ", words)),
      ),
    ),
    card("Words", facts(WORDS)),
    card(
      "For scripts",
      h(
        "p",
        {},
        state.me
          ? [
              "All of this can be done over HTTP: see the ",
              link("#/api", "routes"),
              " and the ",
              link("/v1/openapi.json", "OpenAPI document"),
              ". Create a token on the page of your ",
              link("#/account", "account"),
              ".",
            ]
          : "All of this can be done over HTTP. Log in to see the routes.",
      ),
      h(
        "pre",
        { tabindex: 0 },
        `export VEILWOOD_SERVICE=${location.origin} VEILWOOD_TOKEN=vw_...\nveilwood remote datasets\nveilwood remote plan visits --epsilon 0.5`,
      ),
    ),
  ];
}

export async function reference() {
  const { paths, components } = await (await fetch("/v1/openapi.json")).json();
  const nameOf = (schema) =>
    schema?.$ref
      ?.split("/")
      .at(-1)
      .replace(/^Page_(\w+)_$/, "page of $1") ??
    (schema?.type === "array" ? `list of ${nameOf(schema.items)}` : (schema?.title ?? schema?.type ?? ""));
  const groups = {};
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods))
      (groups[operation.tags[0]] ??= []).push({ path, method, ...operation });
  }
  const bodyOf = (operation) =>
    Object.entries(operation.requestBody?.content ?? {})
      .map(([type, { schema }]) => {
        const body = components.schemas[nameOf(schema)] ?? schema;
        return `${type}: ${body?.properties ? Object.keys(body.properties).join(", ") : nameOf(schema)}`;
      })
      .join("; ");
  const result = (operation) => Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  const answerOf = ([status, response]) =>
    [
      status,
      ...Object.entries(response.content ?? {}).map(([type, { schema }]) =>
        type.includes("json") ? nameOf(schema) : type,
      ),
    ].join(" ");
  return [
    h("h1", {}, "Routes"),
    h(
      "p",
      { class: "lead" },
      "Send Authorization: Bearer TOKEN. Errors are application/problem+json. The ",
      link("/v1/openapi.json", "OpenAPI document"),
      " has all types.",
    ),
    Object.entries(groups).map(([name, operations]) =>
      card(
        name,
        operations.map((operation) =>
          h(
            "details",
            {},
            h(
              "summary",
              {},
              h("code", {}, `${operation.method.toUpperCase()} ${operation.path}`),
              h("span", { class: "soft small" }, ` ${operation.description ?? operation.summary}`),
            ),
            facts([
              ["body", bodyOf(operation)],
              [
                "parameters",
                (operation.parameters ?? [])
                  .filter((one) => one.in !== "path")
                  .map((one) => one.name)
                  .join(", "),
              ],
              ["answer", result(operation) && answerOf(result(operation))],
            ]),
          ),
        ),
      ),
    ),
  ];
}
