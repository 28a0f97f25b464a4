// The shell: who is logged in, which view is shown.
import { api, can, form, field, h, notify, state, t } from "/page/dom.js";
import * as data from "/page/data.js";
import * as models from "/page/models.js";
import * as people from "/page/people.js";

const ROUTES = [
  [/^#\/$/, data.list], [/^#\/data\/([\w]+)$/, data.one], [/^#\/data\/([\w]+)\/review$/, data.review],
  [/^#\/data\/([\w]+)\/plan$/, models.propose], [/^#\/plans$/, models.plans], [/^#\/plans\/(\w+)$/, models.plan],
  [/^#\/models$/, models.list], [/^#\/models\/(\w+)$/, models.one], [/^#\/tokens$/, people.tokens], [/^#\/people$/, people.list],
];
const LINKS = [["#/", "nav.data"], ["#/plans", "nav.plans"], ["#/models", "nav.models"], ["#/tokens", "nav.tokens"]];

function frame() {
  const links = can("accounts") ? [...LINKS, ["#/people", "nav.people"]] : LINKS;
  const here = location.hash.split("/").slice(0, 2).join("/");
  const current = (link) => link === here || (link === "#/" && (here === "#/data" || here === "#/"));
  document.getElementById("nav").replaceChildren(...(state.me ? links.map(([link, words]) =>
    h("a", { href: link, "aria-current": current(link) ? "page" : null }, t(words))) : []));
  document.getElementById("who").replaceChildren(...(state.me ? [
    h("span", {}, `${state.me.name} (${state.me.roles.join(", ")})`),
    h("button", { class: "quiet", onclick: async () => { await api("DELETE", "/session"); state.me = null; location.hash = "#/login"; } }, t("logout")),
  ] : []));
}

async function show() {
  const main = document.getElementById("main");
  const invitation = /invitation=([\w-]+)/.exec(location.hash);
  if (!state.me) {
    frame();
    main.replaceChildren(...(invitation ? first(invitation[1]) : login()));
    return;
  }
  const [, view, match] = ROUTES.map(([pattern, made]) => [pattern, made, pattern.exec(location.hash)]).find((one) => one[2]) ?? [null, null, null];
  if (!view) { location.hash = "#/"; return; }
  frame();
  try {
    const shown = await view(...match.slice(1));
    main.replaceChildren(...[shown].flat(3).filter(Boolean));
    document.title = `${main.querySelector("h1")?.textContent ?? ""} · Veilwood`;
    main.focus({ preventScroll: true });
  } catch (error) {
    main.replaceChildren(h("h1", {}, t("gone")), h("p", {}, error.message));
  }
}

async function enter(path, asked) {
  await api("POST", path, asked);
  state.me = await api("GET", "/session");
  location.hash = "#/";
  await show();
}

function login() {
  return [h("div", { style: "max-width:24rem;margin:8vh auto" }, h("h1", {}, t("login.title")), h("p", { class: "lead" }, t("login.lead")),
    form([field("name", t("login.name"), { autocomplete: "username", required: true, autocapitalize: "none" }),
      field("password", t("login.password"), { type: "password", autocomplete: "current-password", required: true })],
    t("login.go"), (asked) => enter("/session", asked)), state.provider && h("p", {}, h("a", { href: "/v1/openid/start" }, t("login.provider"))))];
}

function first(invitation) {
  return [h("div", { style: "max-width:24rem;margin:8vh auto" }, h("h1", {}, t("first.title")), h("p", { class: "lead" }, t("first.lead")),
    form([field("name", t("login.name"), { autocomplete: "username", required: true, autocapitalize: "none" }),
      field("password", t("login.password"), { type: "password", autocomplete: "new-password", required: true, minlength: 12, help: t("first.help") })],
    t("first.go"), (asked) => enter("/accounts/accept", { ...asked, invitation })))];
}

state.texts = await (await fetch("/page/texts.json")).json();
state.provider = (await (await fetch("/readyz")).json()).has_provider;
try { state.me = await api("GET", "/session"); } catch { state.me = null; }
window.addEventListener("hashchange", show);
window.addEventListener("unhandledrejection", (event) => notify(event.reason?.message ?? "?", true));
await show();
