// Data sets: budget, table, schema and its review, allowances, ledger.
import {
  action,
  again,
  api,
  bars,
  can,
  card,
  facts,
  field,
  fileField,
  form,
  h,
  link,
  notify,
  short,
  soft,
  table,
  tag,
  tiles,
  when,
} from "/page/dom.js";

const MEDIA_TYPES = { parquet: "application/vnd.apache.parquet" };
const PERIODS = { "": "for ever", year: "every year", month: "every month" };

const left = (dataset) => dataset.epsilon_for_you ?? dataset.epsilon - dataset.epsilon_spent;

export function gauge(dataset) {
  const rest = left(dataset),
    words = `${short(rest)} of ${short(dataset.epsilon)} left`;
  const fill = h("span", { style: { width: `${(100 * rest) / (dataset.epsilon || 1)}%` } });
  return h(
    "div",
    { class: "gauge-box" },
    h(
      "div",
      {
        class: `gauge ${rest < 0.2 * dataset.epsilon ? "low" : ""}`,
        role: "meter",
        "aria-valuemin": 0,
        "aria-valuemax": dataset.epsilon,
        "aria-valuenow": rest,
        "aria-label": `Budget, epsilon: ${words}`,
      },
      fill,
    ),
    h("span", { class: "small" }, words),
  );
}

function status(dataset) {
  if (dataset.retired) return tag("retired", "bad");
  if (dataset.frozen) return tag("frozen", "bad");
  if (!dataset.has_table) return tag("no table yet", "wait");
  return dataset.has_schema ? tag("ready", "good") : tag("no schema yet", "wait");
}

/** What one more training costs, as text beside a field for epsilon. */
export function forecast(epsilon, dataset) {
  const rest = left(dataset);
  if (!(epsilon > 0)) return "";
  if (epsilon > rest * (1 + 1e-9)) return `Only ${short(rest)} is left for you.`;
  const more = Math.floor((rest * (1 + 1e-9)) / epsilon);
  return `Leaves ${short(rest - epsilon)} of ${short(dataset.epsilon)}. ${more} such ${more === 1 ? "release fits" : "releases fit"} into what is left.`;
}

export function forecastField(name, words, value, dataset, more = {}) {
  const place = h("span", { class: "small", role: "status" }),
    warning = h("span", { class: "small warning" });
  const update = (epsilon) => {
    place.textContent = forecast(epsilon, dataset);
    warning.textContent = epsilon >= 5 ? " A large epsilon is hardly a guarantee. At most 2 is usual." : "";
    more.onvalue?.(epsilon);
  };
  update(Number(value));
  return field(name, words, {
    value,
    inputmode: "decimal",
    required: true,
    oninput: (event) => update(Number(event.target.value)),
    help: more.help,
    after: h("p", { class: "beside" }, place, warning),
  });
}

export async function list() {
  const { items } = await api("GET", "/datasets?limit=500");
  return [
    h("h1", {}, "Data sets"),
    h("p", { class: "lead" }, "Each data set protects a population, and has a budget and a ledger of its charges."),
    card(
      null,
      table(
        "Data sets",
        [
          ["Name", (one) => one.name, (one) => link(`#/data/${one.name}`, one.name)],
          ["Population", (one) => one.people],
          ["State", (one) => one.frozen ?? "", status],
          ["Epsilon", left, gauge],
        ],
        items,
        can("data") ? "No data set yet. Register the first one below." : "No data set yet. A custodian registers them.",
      ),
    ),
    can("data") &&
      card(
        "Register a data set",
        form(
          [
            field("name", "Name", {
              required: true,
              pattern: "[a-z][a-z0-9_]{0,29}",
              help: "Lower-case letters, digits and underscores.",
            }),
            field("people", "Whose rows are these?", {
              required: true,
              help: "For example: patients of clinic X. Everything released about them adds up in one ledger.",
            }),
            field("epsilon", "Budget, epsilon", {
              required: true,
              value: "3",
              inputmode: "decimal",
              help: "Limit of all releases together, for ever. 1 to 5 is common. It cannot be raised later.",
            }),
            h(
              "details",
              {},
              h("summary", {}, "The rows are on the server already"),
              field("source", "Path", {
                help: "Of a file in a folder that the operator allows. Otherwise upload the table in the next step.",
              }),
            ),
          ],
          "Register",
          async ({ source, ...typed }) => {
            await api("POST", "/datasets", source ? { ...typed, source } : typed);
            location.hash = `#/data/${typed.name}`;
          },
        ),
      ),
  ];
}

export async function detail(name) {
  const dataset = await api("GET", `/datasets/${name}`);
  const [schema, ledger, allowances] = await Promise.all([
    dataset.has_schema ? api("GET", `/datasets/${name}/schema`) : null,
    can("records") ? api("GET", `/datasets/${name}/ledger?limit=500`) : null,
    api("GET", `/datasets/${name}/allowances`),
  ]);
  const isReady = dataset.has_table && dataset.has_schema && !dataset.frozen && !dataset.retired;
  return [
    h("div", { class: "row spread" }, h("h1", {}, name), status(dataset)),
    h("p", { class: "lead" }, dataset.people),
    dataset.frozen && frozenCard(dataset),
    budgetCard(dataset, ledger, allowances, isReady && can("plan")),
    can("data") && !dataset.retired && tableCard(dataset),
    schemaCard(dataset, schema),
    (can("data") || allowances.length > 0) && allowanceCard(dataset, allowances),
    ledger && ledgerCard(dataset, ledger),
    can("data") && !dataset.retired && retireCard(dataset),
  ];
}

function budgetCard(dataset, ledger, allowances, mayPlan) {
  const { name } = dataset,
    spent = dataset.epsilon_spent,
    rest = dataset.epsilon - spent;
  const last =
    ledger?.entries.find((entry) => entry.state !== "cancelled" && entry.epsilon)?.epsilon ??
    Math.min(1, dataset.epsilon);
  const people = ledger?.accounts ?? [];
  return card(
    "Budget",
    tiles([
      ["Left for you", short(left(dataset)), `of epsilon ${short(dataset.epsilon)}`],
      ["Spent by all", short(spent)],
      ["Left for all", short(rest)],
    ]),
    people.length > 0 &&
      h(
        "div",
        {},
        h("h3", {}, "Who spent it"),
        bars(
          "Spent by person",
          [
            ...people.map((one) => {
              const own = allowances
                .filter((limit) => limit.account === one.account)
                .map((limit) => short(Number(limit.epsilon) - limit.epsilon_spent));
              return {
                name: one.account,
                value: one.epsilon,
                text: `${short(one.epsilon)} in ${one.releases} ${one.releases === 1 ? "release" : "releases"}${own.length ? `, ${own.join(", ")} left` : ""}`,
              };
            }),
            { name: "not spent", value: rest, text: `${short(rest)} left` },
          ],
          dataset.epsilon,
        ),
      ),
    !dataset.retired &&
      h(
        "div",
        { class: "narrow-field" },
        forecastField("forecast", "One more training at epsilon", short(last), dataset),
      ),
    mayPlan && h("p", {}, h("a", { class: "button", href: `#/data/${name}/plan` }, "Plan a training")),
  );
}

function frozenCard({ name, frozen }) {
  const title = "This ledger is frozen";
  if (!can("data"))
    return card(title, h("p", {}, `Because ${frozen}. Nothing can be spent until a custodian thaws it.`));
  return card(
    title,
    h("p", {}, `Because ${frozen}. Nothing is spent until you have charged the releases that it may lack.`),
    certificateField(name),
    form(
      [
        field("missing_epsilon", "Epsilon of all releases without a certificate", {
          required: true,
          inputmode: "decimal",
          help: "Type 0 if you are certain that there are none. It is charged.",
        }),
        field("reason", "Why is the older copy there?", { required: true, help: "It is recorded." }),
      ],
      "Thaw",
      async (typed) => {
        await api("POST", `/datasets/${name}/ledger/thaw`, typed);
        again();
      },
    ),
  );
}

const certificateField = (name) =>
  fileField(
    "Charge a certificate (JSON)",
    ".json",
    async (file) => {
      const content = JSON.parse(await file.text());
      const result = await api("POST", `/datasets/${name}/ledger/certificates`, { certificates: [content].flat() });
      notify(result.charged.length ? `Charged: ${result.charged.length}` : "The ledger holds it already.");
      again();
    },
    "Of releases that recipients hold. What the ledger lacks is charged, at any time.",
  );

function tableCard({ name, has_table }) {
  return card(
    "Table",
    h(
      "p",
      {},
      has_table
        ? "A table is stored. Only its custodians can replace or delete it; nobody can read it here."
        : "There is no table yet.",
    ),
    fileField("Upload a CSV or Parquet file", ".csv,.parquet", async (file) => {
      await api("PUT", `/datasets/${name}/table`, file, {
        "Content-Type": MEDIA_TYPES[file.name.split(".").at(-1)] ?? "text/csv",
      });
      notify("The table is stored.");
      again();
    }),
    has_table &&
      h(
        "details",
        {},
        h("summary", {}, "Delete the table"),
        soft("Models stay, and private predictors answer no more."),
        h(
          "p",
          {},
          action(
            "Delete the rows for good",
            async () => {
              await api("DELETE", `/datasets/${name}/table`);
              again();
            },
            "danger",
          ),
        ),
      ),
  );
}

function domain(column) {
  const values = (column.values ?? []).map(String);
  const words = column.values
    ? values.slice(0, 12).join(", ") + (values.length > 12 ? " …" : "")
    : column.lower !== undefined
      ? `${column.lower} to ${column.upper}`
      : "";
  return column.nullable ? `${words}, or missing` : words;
}

const drafts = {};

function schemaCard({ name, has_table, retired }, schema) {
  const shown = schema
    ? [
        h("p", {}, `${schema.columns.length} columns, target: ${schema.target}.`),
        table(
          "Schema",
          [
            ["Column", (one) => one.name],
            ["Kind", (one) => one.kind],
            ["What is possible", domain],
          ],
          schema.columns,
        ),
        h("details", {}, h("summary", {}, "As JSON"), h("pre", { tabindex: 0 }, JSON.stringify(schema, null, 1))),
      ]
    : h("p", {}, "Nothing can be planned without a schema: bounds and categories must be public knowledge.");
  const change = can("data") &&
    !retired && [
      has_table &&
        form(
          [field("target", "Target column", { help: "Empty: the last column." })],
          "Draft it from the table",
          async ({ target }) => {
            drafts[name] = await api(
              "POST",
              `/datasets/${name}/draft${target ? `?target=${encodeURIComponent(target)}` : ""}`,
            );
            location.hash = `#/data/${name}/review`;
          },
        ),
      fileField("Or upload a reviewed schema", ".json", async (file) => {
        await api("PUT", `/datasets/${name}/schema`, JSON.parse(await file.text()));
        notify("The schema is declared.");
        again();
      }),
    ];
  return card(
    "Schema",
    shown,
    change && (schema ? h("details", {}, h("summary", {}, "Change the schema"), change) : h("div", {}, change)),
  );
}

function allowanceCard({ name }, allowances) {
  return card(
    "Allowances",
    soft("Narrower limits, of one account or of all together, permanent or renewed."),
    table(
      "Allowances",
      [
        ["Account", (one) => one.account || "all together"],
        ["Renewed", (one) => PERIODS[one.period]],
        ["Epsilon", (one) => Number(one.epsilon), (one) => short(one.epsilon), true],
        [
          "Left",
          (one) => Number(one.epsilon) - one.epsilon_spent,
          (one) => short(Number(one.epsilon) - one.epsilon_spent),
          true,
        ],
        ...(can("data")
          ? [
              [
                "Remove",
                null,
                (one) =>
                  action(
                    "Remove",
                    async () => {
                      await api("DELETE", `/datasets/${name}/allowances/${one.id}`);
                      again();
                    },
                    "danger",
                  ),
              ],
            ]
          : []),
      ],
      allowances,
      "None: everybody shares the whole budget.",
    ),
    can("data") &&
      h(
        "details",
        {},
        h("summary", {}, "Add an allowance"),
        form(
          [
            field("account", "Account", { help: "Empty: all accounts together." }),
            field("period", "Renewed", { options: Object.entries(PERIODS), value: "" }),
            field("epsilon", "Epsilon", { required: true, value: "1", inputmode: "decimal" }),
          ],
          "Add",
          async (typed) => {
            const added = await api("POST", `/datasets/${name}/allowances`, typed);
            if (added.warning) notify(added.warning);
            again();
          },
        ),
      ),
  );
}

function ledgerCard({ name, frozen }, ledger) {
  const verified = h("div", { role: "status" });
  const verify = action("Verify the hash chain", async () => {
    const { head } = await api("POST", `/datasets/${name}/ledger/verify`);
    verified.replaceChildren(
      h("p", {}, tag("The ledger is intact", "good"), " Record its last hash elsewhere, to detect an older copy:"),
      h("p", { class: "mono" }, head),
    );
  });
  const settle = (entry) =>
    entry.state === "reserved" &&
    can("data") &&
    h(
      "details",
      {},
      h("summary", {}, "Settle"),
      form([field("reason", "Why?", { required: true })], "Settle as spent", async (typed) => {
        await api("POST", `/datasets/${name}/ledger/${entry.id}/resolve`, typed);
        again();
      }),
    );
  return card(
    "Ledger",
    h("p", {}, verify),
    verified,
    table(
      "Ledger",
      [
        ["Entry", (one) => one.id, null, true],
        ["When", (one) => one.time, (one) => when(one.time)],
        ["Who", (one) => one.account],
        [
          "What",
          (one) => one.what,
          (one) => [
            one.what,
            one.grant &&
              h(
                "div",
                { class: "small" },
                link(`#/plans/${one.grant}`, "plan"),
                one.model && [" · ", link(`#/models/${one.model}`, "release")],
              ),
          ],
        ],
        ["Epsilon", (one) => one.epsilon, (one) => short(one.epsilon), true],
        [
          "State",
          (one) => one.state,
          (one) => [tag(one.state, one.state === "committed" ? "good" : "wait"), settle(one)],
        ],
      ],
      ledger.entries,
      "Nothing was charged yet.",
    ),
    ledger.next && soft("The newest 500 entries. All: veilwood remote ledger."),
    can("data") && !frozen && h("details", {}, h("summary", {}, "Charge a certificate"), certificateField(name)),
  );
}

function retireCard({ name }) {
  return card(
    "Retire",
    h(
      "details",
      {},
      h("summary", {}, "Retire this data set"),
      soft("Deletes the rows, ends all runs, and releases nothing any more. Ledger and models stay."),
      form(
        [field("reason", "Why?", { required: true })],
        "Retire for good",
        async (typed) => {
          await api("POST", `/datasets/${name}/retire`, typed);
          again();
        },
        "danger",
      ),
    ),
  );
}

// -- the review of a draft: the service asks the questions, so that page and terminal ask the same ----------------------

export async function review(name) {
  drafts[name] ??= await api("POST", `/datasets/${name}/draft`);
  const place = h("div");
  let later = [],
    isShown = false;
  const step = async (answer) => {
    const result = await api("POST", `/datasets/${name}/review`, { draft: drafts[name], answer, later });
    drafts[name] = result.draft;
    later = result.later;
    place.replaceChildren(question(name, result.question, step));
    (place.querySelector("[data-key=Enter]") ?? place.querySelector("input"))?.focus();
  };
  const onKey = (event) => {
    isShown ||= place.isConnected;
    if (isShown && !place.isConnected) document.removeEventListener("keydown", onKey);
    if (!place.isConnected || event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey)
      return;
    if (event.key === "Enter" && ["BUTTON", "A", "SUMMARY"].includes(event.target.tagName)) return; // it presses itself
    if (["Enter", "x", "l"].includes(event.key)) place.querySelector(`[data-key=${event.key}]`)?.click();
  };
  document.addEventListener("keydown", onKey);
  await step(null);
  const omitted = Object.entries(drafts[name].left_out ?? {});
  return [
    h("h1", {}, "Review the schema"),
    h(
      "p",
      { class: "lead" },
      "The draft was made from private rows. Accept the usual values of the catalogue, or enter what is publicly known, with its source.",
    ),
    place,
    omitted.length > 0 && card("Left out of the draft", facts(omitted.map(([column, why]) => [column, why]))),
  ];
}

function question(name, asked, step, isNumeric = asked?.kind === "numeric") {
  if (!asked) {
    return card(
      "All columns are reviewed",
      h(
        "p",
        {},
        action(
          "Use this schema",
          async () => {
            await api("PUT", `/datasets/${name}/schema`, drafts[name]);
            delete drafts[name];
            notify("The schema is declared.");
            location.hash = `#/data/${name}`;
          },
          "",
        ),
      ),
    );
  }
  const progress = `Column ${asked.number} of ${asked.of}`,
    keyed = (key, words, answer, kind = "quiet") => {
      const button = action(words, () => step(answer), kind);
      button.dataset.key = key;
      return button;
    };
  const flip = (event) => event.target.closest("section").replaceWith(question(name, asked, step, !isNumeric));
  return card(
    asked.name,
    h("p", { class: "soft small" }, progress),
    h("progress", { value: asked.number - 1, max: asked.of, "aria-label": progress }),
    h("p", {}, `The draft has: ${asked.drafted}`),
    h(
      "p",
      {},
      asked.proposal ? `The catalogue proposes: ${asked.proposal}` : "The catalogue has nothing for this column.",
    ),
    h(
      "div",
      { class: "row" },
      asked.proposal && keyed("Enter", "Accept (Enter)", { kind: "accept" }, ""),
      !asked.is_target && keyed("x", "Exclude the column (x)", { kind: "leave out" }),
      keyed("l", "Later (l)", { kind: "later" }),
      h(
        "button",
        { type: "button", class: "quiet", onclick: flip },
        isNumeric ? "These are categories" : "These are numbers",
      ),
    ),
    form(
      [
        isNumeric
          ? [
              field("lower", "Lowest possible value", { inputmode: "decimal", required: true }),
              field("upper", "Highest possible value", { inputmode: "decimal", required: true }),
            ]
          : field("values", "Categories, separated by commas", { required: true }),
        field("source", "What is the public source?", { required: true }),
      ],
      "Use this",
      (typed) =>
        step({
          kind: "state",
          source: typed.source,
          bounds: isNumeric
            ? { lower: Number(typed.lower), upper: Number(typed.upper) }
            : {
                values: typed.values
                  .split(",")
                  .map((value) => value.trim())
                  .filter(Boolean),
              },
        }),
    ),
  );
}
