// Who is logged in, and which view is shown.
import { api, can, field, form, h, link, state } from "/page/dom.js";
import * as data from "/page/data.js";
import * as help from "/page/help.js";
import * as models from "/page/models.js";
import * as people from "/page/people.js";
import * as plans from "/page/plans.js";

const ROUTES = [
  [/^#\/$/, data.list],
  [/^#\/data\/(\w+)$/, data.detail],
  [/^#\/data\/(\w+)\/review$/, data.review],
  [/^#\/data\/(\w+)\/plan$/, plans.propose],
  [/^#\/plans$/, plans.list],
  [/^#\/plans\/(\w+)$/, plans.detail],
  [/^#\/models$/, models.list],
  [/^#\/models\/(\w+)$/, models.detail],
  [/^#\/account$/, people.account],
  [/^#\/people$/, people.list],
  [/^#\/events$/, people.events],
  [/^#\/help$/, help.guide],
  [/^#\/api$/, help.reference],
];

function drawFrame() {
  const links = [
    ["#/", "Data"],
    ["#/plans", "Plans"],
    ["#/models", "Models"],
    can("accounts") && ["#/people", "People"],
    can("records") && ["#/events", "Events"],
    ["#/account", "Account"],
  ];
  const here = location.hash.split("/").slice(0, 2).join("/").replace("#/data", "#/").replace("#/api", "#/help");
  const shown = state.me ? links.filter(Boolean) : [];
  const view = ([address, words]) => h("a", { href: address, "aria-current": address === here ? "page" : null }, words);
  document.getElementById("nav").replaceChildren(...shown.map(view));
  const account = state.me && [
    h("span", {}, state.me.name),
    h("button", { class: "quiet", onclick: logOut }, "Log out"),
  ];
  const corner = [view(["#/help", "Help"]), account].flat().filter(Boolean);
  document.getElementById("who").replaceChildren(...corner);
}

async function logOut() {
  await api("DELETE", "/session");
  state.me = null;
  location.hash = "#/login";
  await show();
}

async function show() {
  const main = document.getElementById("main"),
    hash = location.hash;
  const invitation = /(first|invitation)=([\w-]+)/.exec(hash);
  const [, view, match] =
    ROUTES.map(([pattern, made]) => [pattern, made, pattern.exec(hash)]).find((route) => route[2]) ?? [];
  const isHelp = view === help.guide;
  drawFrame();
  if (invitation || (!state.me && !isHelp)) {
    main.replaceChildren(invitation ? accept(invitation[2], invitation[1] === "first") : logIn());
    document.title = "Veilwood";
    return;
  }
  if (!view) {
    location.hash = "#/";
    return;
  }
  let shown;
  try {
    shown = await view(...match.slice(1));
  } catch (error) {
    shown = [
      h("h1", {}, error.status === 404 ? "There is nothing here" : "This cannot be shown"),
      h("p", {}, error.message),
    ];
  }
  if (location.hash !== hash) return; // somebody has gone on meanwhile
  main.replaceChildren(...[shown].flat(3).filter(Boolean));
  document.title = `${main.querySelector("h1")?.textContent ?? ""} · Veilwood`;
  main.focus({ preventScroll: true });
}

async function enter(path, request, address = "#/") {
  await api("POST", path, request);
  state.me = await api("GET", "/session");
  if (location.hash === address) await show();
  else location.hash = address;
}

const NAME = { autocomplete: "username", required: true, autocapitalize: "none" };

function logIn() {
  return h(
    "div",
    { class: "narrow" },
    h("h1", {}, "Log in"),
    h("p", { class: "lead" }, "Predictions are free. Releases from private rows are planned, signed and charged."),
    form(
      [
        field("name", "Name", NAME),
        field("password", "Password", { type: "password", autocomplete: "current-password", required: true }),
      ],
      "Log in",
      (typed) => enter("/session", typed),
    ),
    state.hasProvider && h("p", {}, link("/v1/openid/start", "Log in with your organisation")),
    h("p", { class: "soft small" }, "No account, or a lost password? Ask an operator for an invitation."),
  );
}

function accept(invitation, isFirst) {
  return h(
    "div",
    { class: "narrow" },
    h("h1", {}, "Welcome"),
    h(
      "p",
      { class: "lead" },
      isFirst
        ? "Create the first account. It has every role, and gives roles to others."
        : "Choose a password for your account. The invitation works once.",
    ),
    form(
      [
        isFirst && field("name", "Name", NAME),
        field("password", "Password", {
          type: "password",
          autocomplete: "new-password",
          required: true,
          minlength: 12,
          help: "At least 12 characters.",
        }),
      ],
      isFirst ? "Create the account" : "Set the password",
      (typed) => enter("/accounts/accept", { ...typed, invitation }),
    ),
  );
}

/** The link of a demonstration logs in, and opens a model that can be used at once. */
async function openDemo(password) {
  history.replaceState(null, "", "#/"); // the password does not stay in the address
  await api("POST", "/session", { name: "demo", password });
  state.me = await api("GET", "/session");
  const { items } = await api("GET", "/models?limit=500");
  const model = items.find((one) => one.kind === "trained");
  history.replaceState(null, "", model ? `#/models/${model.id}` : "#/");
}

state.hasProvider = (await (await fetch("/readyz")).json()).has_provider;
const demo = /demo=([\w-]+)/.exec(location.hash);
if (demo) await openDemo(demo[1]).catch(() => undefined);
else state.me = await api("GET", "/session").catch(() => null);
window.addEventListener("hashchange", show);
await show();
