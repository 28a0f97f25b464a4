// The own account with its tokens and password, the accounts of others, and who did what.
import {
  action,
  again,
  api,
  can,
  card,
  choices,
  field,
  form,
  h,
  link,
  notify,
  soft,
  state,
  table,
  tag,
  when,
} from "/page/dom.js";

const ROLES = [
  ["custodian", "custodian", "manages data and budgets, signs plans, thaws ledgers; may do what analysts may"],
  ["analyst", "analyst", "plans, runs signed plans, predicts and asks"],
  ["auditor", "auditor", "reads ledgers, plans, jobs and events"],
  ["operator", "operator", "invites people, manages accounts, reads metrics"],
];
const SCOPES = {
  ask: "predict, and ask private predictors",
  plan: "propose plans and name models",
  run: "run signed plans, cancel jobs",
  sign: "sign plans",
  data: "register data sets, tables, schemas and allowances",
  records: "read ledgers, events and all plans",
  accounts: "see accounts",
  operate: "read metrics and states of jobs",
};

let shownOnce = null; // a token or an invitation that was made just now

const takeShown = () => {
  const shown = shownOnce;
  shownOnce = null;
  return h("div", { role: "status" }, shown);
};

const showNext = (...shown) => {
  shownOnce = card(...shown);
  again();
};

export async function account() {
  const tokens = await api("GET", "/tokens");
  const ofKind = (kind) => tokens.filter((token) => token.kind === kind);
  const revoke = (words) => [
    "Action",
    null,
    (one) =>
      action(
        words,
        async () => {
          await api("DELETE", `/tokens/${one.id}`);
          again();
        },
        "danger",
        `${words}: ${one.name}`,
      ),
  ];
  return [
    h("h1", {}, state.me.name),
    h("p", { class: "lead" }, state.me.roles.join(", ")),
    takeShown(),
    card(
      "Tokens",
      soft("For scripts. A token is shown once, has at most your rights, and expires."),
      table(
        "Tokens",
        [
          ["For", (one) => one.name],
          ["Rights", (one) => one.scopes],
          ["Until", (one) => one.expires, (one) => when(one.expires)],
          revoke("Revoke"),
        ],
        ofKind("token"),
        "You have no tokens.",
      ),
      h(
        "details",
        { open: !ofKind("token").length },
        h("summary", {}, "Create a token"),
        form(
          [
            field("name", "What is it for?", { required: true, maxlength: 200 }),
            field("days", "Days to live", { type: "number", min: 1, max: 366, value: "30", required: true }),
            choices(
              "scopes",
              "Rights",
              state.me.scopes.map((name) => [name, name, SCOPES[name]]),
            ),
          ],
          "Create the token",
          async ({ name, days, scopes }) => {
            const { token } = await api("POST", "/tokens", { name, scopes, days: Number(days) });
            showNext("Copy it now; it is not shown again", h("pre", { tabindex: 0 }, token));
          },
        ),
      ),
    ),
    card(
      "Sessions",
      table(
        "Sessions",
        [
          ["Opened", (one) => one.created, (one) => when(one.created)],
          ["Ends", (one) => one.expires, (one) => when(one.expires)],
          revoke("End"),
        ],
        ofKind("session"),
      ),
    ),
    state.me.has_password &&
      card(
        "Your password",
        soft("Changing it ends all your tokens and other sessions."),
        form(
          [
            field("old", "Current password", { type: "password", autocomplete: "current-password", required: true }),
            field("new", "New password", {
              type: "password",
              autocomplete: "new-password",
              required: true,
              minlength: 12,
              help: "At least 12 characters.",
            }),
          ],
          "Change the password",
          async (typed) => {
            state.me.csrf = (await api("PUT", "/session/password", typed)).csrf;
            notify("The password is changed.");
            again();
          },
        ),
      ),
  ];
}

const invitationLink = (invitation) => `${location.origin}/page/index.html#invitation=${invitation}`;

export async function list() {
  const accounts = await api("GET", "/accounts");
  const showInvitation = ({ name, invitation }) => {
    const sent = [
      h("pre", { tabindex: 0 }, invitationLink(invitation)),
      soft("It sets the password, once, within 7 days. Whoever opens it first has the account."),
    ];
    showNext(
      `Send this link to ${name}`,
      invitation ? sent : h("p", {}, "They log in with your organisation. No link is needed."),
    );
  };
  const change = (one) =>
    h(
      "details",
      {},
      h("summary", { "aria-label": `Change: ${one.name}` }, "Change"),
      form(
        choices("roles", "Roles", ROLES, (role) => one.roles.includes(role)),
        "Save",
        async ({ roles }) => {
          await api("PATCH", `/accounts/${one.name}`, { roles });
          notify(`Saved. Tokens and sessions of ${one.name} have ended.`);
          again();
        },
      ),
      h(
        "p",
        { class: "row" },
        action(
          "Invite again",
          async () => showInvitation(await api("POST", `/accounts/${one.name}/invitation`)),
          "quiet",
          `Invite again: ${one.name}`,
        ),
        action(
          one.disabled ? "Enable" : "Disable",
          async () => {
            await api("PATCH", `/accounts/${one.name}`, { disabled: !one.disabled });
            again();
          },
          "danger",
          `${one.disabled ? "Enable" : "Disable"}: ${one.name}`,
        ),
      ),
    );
  return [
    h("h1", {}, "People"),
    h(
      "p",
      { class: "lead" },
      "Nobody sets another person's password: an invitation does, once. Auditors see every change here in the events.",
    ),
    takeShown(),
    card(
      "Accounts",
      table(
        "Accounts",
        [
          ["Name", (one) => one.name],
          ["Roles", (one) => one.roles.join(", ")],
          [
            "State",
            (one) => (one.disabled ? "disabled" : one.invited ? "invited" : "active"),
            (one) =>
              one.disabled ? tag("disabled", "bad") : one.invited ? tag("invited", "wait") : tag("active", "good"),
          ],
          ["Action", null, (one) => (one.name === state.me.name ? "you" : change(one))],
        ],
        accounts,
      ),
    ),
    card(
      "Invite somebody",
      form(
        [
          field("name", "Name", {
            required: true,
            pattern: "[a-z][a-z0-9._\\-]{0,39}",
            help: "Lower-case letters, digits, dots, dashes and underscores.",
          }),
          choices("roles", "Roles", ROLES),
          state.hasProvider &&
            field("subject", "Subject at the OpenID provider", {
              help: "Identifier of this person there. No link is needed then.",
            }),
        ],
        "Invite",
        async ({ subject, ...typed }) => {
          const invited = await api("POST", "/accounts", subject ? { ...typed, subject } : typed);
          showInvitation(invited);
        },
      ),
    ),
  ];
}

const PAGES = { plan: "plans", model: "models", dataset: "data", table: "data", schema: "data", ledger: "data" };

/** What an event is about, with a link to its page. */
function subjectOf({ action: name, subject, detail }) {
  const [kind] = name.split("."),
    shown = h("span", { class: "mono" }, subject);
  if (kind === "job" && detail.plan) return link(`#/plans/${detail.plan}`, shown);
  return PAGES[kind] ? link(`#/${PAGES[kind]}/${subject}`, shown) : shown;
}

const detailOf = ({ detail }) =>
  Object.entries(detail)
    .map(([name, value]) => `${name}: ${value}`)
    .join(", ");

export async function events() {
  const { items, next } = await api("GET", "/events?limit=500");
  return [
    h("h1", {}, "Events"),
    h("p", { class: "lead" }, "Who did what. Events are only added, never changed or removed."),
    card(
      null,
      table(
        "Events",
        [
          ["When", (one) => one.created, (one) => when(one.created)],
          ["Who", (one) => one.account],
          ["What", (one) => one.action],
          ["Which", (one) => one.subject, subjectOf],
          ["Detail", detailOf],
        ],
        items,
      ),
      next && can("records") && soft("The newest 500. All: veilwood remote events --limit."),
    ),
  ];
}
