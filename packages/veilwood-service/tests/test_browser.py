# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what each role does, in light and dark, on a desk and a phone, and by keyboard alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from veilwood_testing.processes import free_ports
from veilwood_testing.running_service import PASSWORD, VISITS

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
SIZES = {name: {"width": width, "height": 800} for name, width in (("desk", 1100), ("tablet", 768), ("phone", 390))}
HIGHEST_HEAD = 120


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Start a service as people do; yield its address and the link that it prints."""
    port = str(free_ports(1)[0])
    command = [sys.executable, "-m", "veilwood", "serve", str(folder / "service"), "--port", port, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("Veilwood at ").strip()
        try:
            yield address, process.stdout.readline().partition(": ")[2].strip()
        finally:
            process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Person:
    """Somebody in front of the page. Nothing may be broken, and nothing may keep others from using it."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self._folder, self.broken = page, folder, list[str]()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: self.broken.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.broken.append(str(error)))

    def press(self, words: str, role: str = "button") -> None:
        self.page.get_by_role(role, name=words, exact=True).first.click()

    def fill(self, **values: str) -> None:
        for label, value in values.items():
            self.page.get_by_label(label.replace("_", " ")).first.fill(value)

    def sees(self, words: str) -> bool:
        return bool(self.page.get_by_text(words).first.is_visible())

    def press_summary(self, words: str) -> None:
        self.page.locator("summary", has_text=words).first.click()

    def at(self, heading: str) -> None:
        self.page.get_by_role("heading", name=heading).first.wait_for()

    def go(self, address: str, heading: str) -> None:
        self.page.evaluate(f"location.hash = '#/{address}'")
        self.at(heading)

    def error_beside(self, field: str) -> bool:
        """Return whether an error stands beside a field, which has the focus and refers to it."""
        self.page.locator(f"[name={field}][aria-invalid]:focus").wait_for()
        number = self.page.locator(f"[name={field}]").get_attribute("aria-describedby")
        return bool(self.page.locator(f"[id='{number}']").inner_text())

    def look(self, name: str) -> None:
        """Take pictures in all forms, and let axe search each for what keeps people out."""
        for size, width in SIZES.items():
            self.page.set_viewport_size(width)
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme)
                self.page.wait_for_timeout(100)
                self.page.screenshot(path=self._folder / f"{name}-{size}-{scheme}.png", full_page=True)
                found = Axe().run(self.page)
                assert found.violations_count == 0, f"{name} {size} {scheme}: {found.generate_report()}"
            wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name} is wider than a {size}"
            assert self.page.locator("header").bounding_box()["height"] < HIGHEST_HEAD, f"{name} on a {size}"
        self.page.set_viewport_size(SIZES["desk"])
        self.page.emulate_media(color_scheme="light")

    def tab_to(self, words: str) -> None:
        """Press Tab until a link, button or field of this name has the focus, and its outline shows."""
        for _ in range(60):
            self.page.keyboard.press("Tab")
            focused = self.page.evaluate(
                "(e => [e.innerText || e.labels?.[0]?.innerText || '', getComputedStyle(e).outlineStyle])"
                "(document.activeElement)"
            )
            if focused[0].startswith(words):
                assert focused[1] != "none", words
                return
        raise AssertionError(f"{words} is not reached by Tab")


@contextmanager
def person(browser: Any, address: str, folder: Path, name: str | None = None) -> Iterator[Person]:
    context = browser.new_context(viewport=SIZES["desk"])
    made = Person(context.new_page(), folder)
    made.page.goto(address)
    if name is not None:
        made.fill(Name=name, Password=PASSWORD)
        made.press("Log in")
        made.at("Data sets")
        made.broken.clear()  # the answer that nobody was logged in
    yield made
    assert made.broken == []
    context.close()


def test_the_demonstration_opens_on_a_model_that_can_be_used(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as (_, link), person(browser, link, tmp_path) as guest:
        guest.at("First look at cars")
        guest.broken.clear()
        assert "demo=" not in guest.page.url  # nothing that logs in stays in the address
        guest.press("Predict")
        guest.page.get_by_role("list", name="Probability").wait_for()
        assert guest.page.get_by_role("table", name="Evaluations").get_by_role("row").count() == 2
        guest.look("demo")
        for address, heading in (
            ("plans", "Plans"),
            ("models", "Models"),
            ("events", "Events"),
            ("help", "Help"),
            ("api", "Routes"),
        ):
            guest.go(address, heading)
            guest.look(address)


def test_a_release_is_planned_signed_and_run_by_keyboard_alone(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as (_, link), person(browser, link, tmp_path) as guest:
        guest.at("First look at cars")
        guest.broken.clear()
        guest.go("", "Data sets")
        keyboard = guest.page.keyboard
        for words, heading in (("cars", "cars"), ("Plan a training", "Plan a training on cars")):
            guest.tab_to(words)
            keyboard.press("Enter")
            guest.at(heading)
        guest.tab_to("Name of the model")
        keyboard.type("By keyboard")
        guest.tab_to("Make the plan")
        keyboard.press("Enter")
        guest.at("By keyboard")
        guest.tab_to("Sign this hash and amount")
        keyboard.press("Enter")
        guest.page.get_by_text("allowed 1 run").wait_for()
        guest.tab_to("Run")
        keyboard.press("Enter")
        guest.page.get_by_role("link", name="Open the model").wait_for()
        guest.page.get_by_text("The signature is used up").wait_for()
        guest.go("models", "Models")
        guest.tab_to("Name")
        keyboard.press("Enter")
        guest.page.locator("th[aria-sort=ascending]").wait_for()
        names = guest.page.get_by_role("rowheader").all_inner_texts()
        assert [name.split("\n")[0] for name in names] == ["By keyboard", "First look at cars"]


def test_every_role_finds_its_way(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as (home, link):
        set_up(browser, home, link, tmp_path)
        plan = propose(browser, home, tmp_path)
        sign_and_run(browser, home, plan, tmp_path)
        ask_privately(browser, home, tmp_path)
        read_records(browser, home, tmp_path)


def accept(browser: Any, home: str, link: str, folder: Path) -> None:
    """Open the link of an invitation and set the password."""
    with person(browser, home, folder) as invited:
        invited.page.goto(link)
        invited.page.reload()
        invited.fill(Password=PASSWORD)
        invited.press("Set the password")
        invited.at("Data sets")
        invited.broken.clear()


def set_up(browser: Any, home: str, link: str, folder: Path) -> None:
    """The first account invites one for each role, and the custodian registers a table."""
    table = folder / "visits.csv"
    VISITS.to_csv(table, index=False)
    with person(browser, link, folder) as first:
        first.look("welcome")
        first.fill(Name="anna", Password=PASSWORD)
        first.press("Create the account")
        first.at("Data sets")
        first.broken.clear()
        first.press("People", "link")
        links = {}
        for role in ("custodian", "analyst", "auditor", "operator"):
            first.at("People")
            first.page.get_by_label("Name").last.fill(role)
            first.page.get_by_role("checkbox", name=f"{role} ").last.check()
            first.press("Invite")
            first.at(f"Send this link to {role}")
            links[role] = first.page.locator("pre").inner_text()
        first.look("people")
        first.go("", "Data sets")
        first.go("people", "People")
        first.page.get_by_label("Change: auditor").click()
        row = first.page.get_by_role("row", name="auditor")
        assert [box.is_checked() for box in row.get_by_role("checkbox").all()] == [False, False, True, False]
        row.get_by_role("button", name="Save").click()
        first.page.get_by_text("Tokens and sessions of auditor have ended").wait_for()
    for role in ("custodian", "analyst", "operator"):
        accept(browser, home, links[role], folder)
    with person(browser, home, folder, "operator") as operator:
        operator.go("people", "People")
        operator.page.get_by_label("Change: auditor").click()
        operator.press("Invite again: auditor")
        operator.at("Send this link to auditor")
        address = operator.page.locator("pre").inner_text()
    accept(browser, home, address, folder)  # saving roles has ended the first invitation
    with person(browser, home, folder, "custodian") as custodian:
        custodian.fill(Name="visits", Whose_rows="patients of clinic X")
        custodian.page.get_by_label("Budget, epsilon").fill("-3")
        custodian.press("Register")
        assert custodian.error_beside("epsilon")
        custodian.look("register")
        custodian.page.get_by_label("Budget, epsilon").fill("3")
        custodian.press("Register")
        custodian.at("visits")
        custodian.broken.clear()  # the answer that -3 is no budget
        custodian.page.get_by_label("Upload a CSV").set_input_files(table)
        custodian.page.get_by_text("A table is stored").wait_for()
        custodian.press("Draft it from the table")
        custodian.at("Review the schema")
        custodian.look("review")
        custodian.at("age")
        custodian.page.keyboard.press("l")
        custodian.at("days")
        custodian.fill(Lowest="0", Highest="30", What_is_the_public_source="the form that is handed out")
        custodian.press("Use this")
        custodian.at("ward")
        custodian.fill(Categories="A, B", What_is_the_public_source="the sign at the door")
        custodian.press("Use this")
        for column in ("ill", "age"):
            custodian.at(column)
            custodian.page.keyboard.press("Enter")
        custodian.at("All columns are reviewed")
        custodian.press("Use this schema")
        custodian.page.get_by_text("4 columns, target").wait_for()
        custodian.look("set")


def propose(browser: Any, home: str, folder: Path) -> str:
    """The analyst plans a training, with a parameter; return the address of the plan."""
    with person(browser, home, folder, "analyst") as analyst:
        analyst.press("visits", "link")
        analyst.press("Plan a training", "link")
        analyst.at("Expected quality")
        analyst.page.get_by_label("Epsilon", exact=False).first.fill("5")
        analyst.page.get_by_text("Only 3 is left for you.").wait_for()
        analyst.page.get_by_text("A large epsilon is hardly a guarantee").wait_for()
        analyst.look("propose")
        analyst.page.get_by_label("Epsilon", exact=False).first.fill("1")
        analyst.page.get_by_text("Leaves 2 of 3").wait_for()
        analyst.fill(Name_of_the_model="Illness by ward", Note="For the board.")
        analyst.page.get_by_label("Estimator").select_option("RandomTreesClassifier")
        analyst.press_summary("Parameters of the estimator")
        analyst.page.get_by_label("max_depth").fill("-1")
        analyst.press("Make the plan")
        assert analyst.error_beside("max_depth")
        analyst.broken.clear()
        analyst.page.get_by_label("max_depth").fill("2")
        analyst.press("Make the plan")
        analyst.page.get_by_text("Waiting for a custodian's signature.").wait_for()
        assert not analyst.page.get_by_role("button", name="Sign this hash").count()
        return str(analyst.page.url)


def sign_and_run(browser: Any, home: str, plan: str, folder: Path) -> None:
    """The custodian signs one run; the analyst runs it, predicts, plans an evaluation, and makes a token."""
    with person(browser, home, folder, "custodian") as custodian:
        custodian.page.goto(plan)
        custodian.at("Illness by ward")
        custodian.look("plan")
        custodian.page.get_by_label("Number of runs").fill("2")
        custodian.page.get_by_text("at most epsilon 2 in all").wait_for()
        custodian.page.get_by_label("Number of runs").fill("1")
        custodian.press("Sign this hash and amount")
        custodian.page.get_by_text("custodian allowed 1 run").wait_for()
    with person(browser, home, folder, "analyst") as analyst:
        analyst.page.goto(plan)
        analyst.press("Run")
        analyst.page.get_by_text("next in the queue").or_(analyst.page.get_by_text("running")).first.wait_for()
        analyst.press("Open the model", "link")
        analyst.at("Illness by ward")
        assert analyst.sees("For the board.")
        analyst.press("Predict")
        analyst.page.get_by_role("list", name="Probability").wait_for()
        with analyst.page.expect_download() as download:
            analyst.page.get_by_label("The answer is a CSV file").set_input_files(folder / "visits.csv")
        assert Path(download.value.path()).read_text().count("\n") == len(VISITS) + 1
        analyst.press_summary("Change name and note")
        analyst.page.get_by_label("Name", exact=True).first.fill("Illness by age")
        analyst.press("Save")
        analyst.at("Illness by age")
        analyst.press("Plan an evaluation")
        analyst.page.get_by_text("Waiting for a custodian's signature.").wait_for()
        evaluation = analyst.page.url
        analyst.go("account", "analyst")
        analyst.fill(What_is_it_for="a script")
        analyst.page.get_by_role("checkbox", name="ask").check()
        analyst.press("Create the token")
        analyst.at("Copy it now")
        assert "vw_" in analyst.page.locator("pre").inner_text()
        analyst.look("account")
        analyst.fill(Current_password="not the password", New_password=f"{PASSWORD}, newer")
        analyst.press("Change the password")
        assert analyst.error_beside("old")
        analyst.broken.clear()
        analyst.fill(Current_password=PASSWORD, New_password=f"{PASSWORD}, newer")
        analyst.press("Change the password")
        analyst.page.get_by_text("You have no tokens.").wait_for()
    with person(browser, home, folder, "custodian") as custodian:
        custodian.page.goto(evaluation)
        custodian.press("Sign this hash and amount")
        custodian.press("Run")
        custodian.press("Open the evaluated model", "link")
        custodian.at("Measured quality")
        assert custodian.page.get_by_role("table", name="Evaluations").get_by_role("row").count() == 2
        custodian.look("evaluated")


def ask_privately(browser: Any, home: str, folder: Path) -> None:
    """The custodian makes a private predictor for one batch, and asks it."""
    questions = VISITS[:2].drop(columns="ill").to_csv(index=False)
    with person(browser, home, folder, "custodian") as custodian:
        custodian.go("data/visits/plan", "Plan a training on visits")
        custodian.page.get_by_label("Estimator").select_option("MatrixForestPredictor")
        custodian.press_summary("Parameters of the estimator")
        custodian.page.locator("[name=mode]").select_option("subsample")
        custodian.page.get_by_label("Epsilon", exact=False).first.fill("0.5")
        custodian.press("Make the plan")
        custodian.page.get_by_text('"subsample"').wait_for()
        custodian.look("predictor")
        custodian.press("Sign this hash and amount")
        custodian.page.get_by_text("allowed epsilon 0.5 for all batches").wait_for()
        custodian.press("Run")
        custodian.press("Open the model", "link")
        custodian.fill(Queries=questions)
        custodian.press("Quote")
        custodian.page.get_by_text("Costs epsilon 0.5").wait_for()
        custodian.look("ask")
        custodian.press("Charge and answer")
        custodian.at("Answers")
        with custodian.page.expect_download() as saved:
            custodian.press("Save the certificate")
        assert json.loads(Path(saved.value.path()).read_text())["epsilon"] == 0.5
        custodian.press("Quote")
        custodian.page.get_by_text("Answered before: free.").wait_for()


def read_records(browser: Any, home: str, folder: Path) -> None:
    """The auditor reads ledger and events; the operator neither, and logs out."""
    with person(browser, home, folder, "auditor") as auditor:
        auditor.press("visits", "link")
        auditor.at("Who spent it")
        assert auditor.page.get_by_role("list", name="Spent by person").get_by_role("listitem").count() == 3
        auditor.press("Verify the hash chain")
        auditor.page.get_by_text("The ledger is intact").wait_for()
        auditor.look("ledger")
        assert not auditor.page.get_by_role("link", name="Plan a training").count()
        assert not auditor.page.get_by_label("Upload a CSV").count()
        auditor.go("events", "Events")
        auditor.page.get_by_role("cell", name="plan.sign").first.wait_for()
    with person(browser, home, folder, "operator") as operator:
        operator.press("visits", "link")
        operator.at("Schema")
        assert not operator.page.get_by_role("heading", name="Ledger").count()
        operator.press("Log out")
        operator.at("Log in")
        operator.look("login")
        operator.fill(Name="operator", Password="a wrong password")
        operator.press("Log in")
        operator.page.get_by_role("alert").wait_for()
        operator.broken.clear()
