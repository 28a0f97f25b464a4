// Tokens and accounts.
import { action, api, card, field, form, h, notify, state, t, tag, when } from "/page/dom.js";

const again = () => window.dispatchEvent(new HashChangeEvent("hashchange"));

const ROLES = ["custodian", "analyst", "auditor", "operator"];

function boxes(name, legend, choices, had = []) {
  return h("fieldset", {}, h("legend", {}, legend), h("div", { class: "row" },
    choices.map((choice) => h("label", { class: "small" }, h("input", { type: "checkbox", name, value: choice, checked: had.includes(choice) }), choice))));
}
const chosen = (form, name) => [...form.querySelectorAll(`[name=${name}]:checked`)].map((box) => box.value);

export async function tokens() {
  const made = h("div"), list = h("div");
  await fill(list);
  return [h("h1", {}, t("token.title")), h("p", { class: "lead" }, t("token.lead")), made, list,
    card(form([field("name", t("token.name"), { required: true }), field("days", t("token.days"), { type: "number", min: 1, max: 366, value: 30 }),
      boxes("scopes", t("token.scopes"), state.me.scopes)], t("token.go"), async (asked, place) => {
      const answer = await api("POST", "/tokens", { name: asked.name, days: Number(asked.days), scopes: chosen(place, "scopes") });
      made.replaceChildren(card(h("p", {}, t("token.once")), h("pre", {}, answer.token)));
      await fill(list);
    })), state.me.has_password && password()];
}

function password() {
  return card(h("h2", {}, t("password.title")), h("p", { class: "soft small" }, t("password.lead")), form([
    field("old", t("password.old"), { type: "password", autocomplete: "current-password", required: true }),
    field("new", t("password.new"), { type: "password", autocomplete: "new-password", required: true, minlength: 12, help: t("first.help") })], t("password.go"), async (asked) => {
    state.me.csrf = (await api("PUT", "/session/password", asked)).csrf;
    notify(t("saved"));
    again();
  }));
}

async function fill(list) {
  const found = await api("GET", "/tokens");
  list.replaceChildren(card(found.length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("token.title") }, h("table", {}, h("thead", {}, h("tr", {}, [t("token.name.short"), t("token.scopes.short"), t("token.until")].map((words) => h("th", { scope: "col" }, words)), h("td"))),
    h("tbody", {}, found.map((token) => h("tr", {},
      h("td", {}, token.name), h("td", { class: "soft" }, token.scopes), h("td", {}, when(token.expires)),
      h("td", { class: "last" }, action(t("token.revoke"), async () => { await api("DELETE", `/tokens/${token.id}`); again(); }, "danger"))))))) : h("p", {}, t("token.none"))));
}

function change(one) {
  return h("details", { class: "small" }, h("summary", { "aria-label": `${t("people.change")}: ${one.name}` }, t("people.change")), form([boxes("roles", t("people.roles"), ROLES, one.roles),
    field("password", t("people.new_password"), { type: "password", minlength: 12, autocomplete: "new-password" })], t("people.save"), async (asked, place) => {
    await api("PATCH", `/accounts/${one.name}`, { roles: chosen(place, "roles"), password: asked.password || null });
    notify(t("people.changed", one));
    again();
  }));
}

export async function list() {
  const found = await api("GET", "/accounts");
  return [h("h1", {}, t("people.title")), h("p", { class: "lead" }, t("people.lead")),
    card(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("people.title") }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("people.name")), h("th", {}, t("people.roles")), h("th", {}, t("state")))),
      h("tbody", {}, found.map((one) => h("tr", {}, h("td", {}, one.name), h("td", {}, one.roles.join(", "), one.name !== state.me.name && change(one)),
        h("td", {}, h("span", { class: "row" }, one.disabled ? tag(t("people.disabled"), "bad") : null, one.name === state.me.name ? null
          : action(t(one.disabled ? "people.enable" : "people.disable"), async () => {
            await api("PATCH", `/accounts/${one.name}`, { disabled: !one.disabled }); again();
          }))))))))),
    card(form([field("name", t("people.name"), { required: true, autocapitalize: "none" }),
      field("password", t("people.password"), { type: "password", minlength: 12, autocomplete: "new-password", help: t("first.help") }),
      h("details", {}, h("summary", {}, t("people.provider")), field("subject", t("people.subject"), { help: t("people.subject.help") })),
      boxes("roles", t("people.roles"), ROLES)], t("people.go"), async (asked, place) => {
      await api("POST", "/accounts", { name: asked.name, password: asked.password || null, subject: asked.subject || null, roles: chosen(place, "roles") });
      notify(t("saved"));
      again();
    }))];
}
