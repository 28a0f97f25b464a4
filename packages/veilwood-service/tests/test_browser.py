# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what each role does, in light and dark, at the width of a desk and of a phone."""

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


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the demonstration as people do; give the link that it prints."""
    folder = tmp_path_factory.mktemp("demo")
    port = str(free_ports(1)[0])
    command = [sys.executable, "-m", "veilwood", "serve", str(folder / "service"), "--demo", "--port", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Veilwood at http://127.0.0.1:{port}\n"
        yield process.stdout.readline().removeprefix("First account: ").strip()
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
        page.set_default_timeout(60_000)
        page.on("console", lambda message: self.broken.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.broken.append(str(error)))

    def press(self, words: str, role: str = "button") -> None:
        self.page.get_by_role(role, name=words, exact=True).first.click()

    def fill(self, **values: str) -> None:
        for label, value in values.items():
            self.page.get_by_label(label.replace("_", " ")).first.fill(value)

    def sees(self, words: str) -> bool:
        return bool(self.page.get_by_text(words).first.is_visible())

    def at(self, heading: str) -> None:
        self.page.get_by_role("heading", name=heading).first.wait_for()

    def look(self, name: str, anew: bool = False) -> None:
        """Take pictures in all forms, and let axe search each for what keeps people out."""
        for size, width in SIZES.items():
            self.page.set_viewport_size(width)
            if size == "phone" and anew:  # charts are drawn for the width that there is
                self.page.reload(wait_until="networkidle")
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme)
                self.page.wait_for_timeout(350)
                self.page.screenshot(path=self._folder / f"{name}-{size}-{scheme}.png", full_page=True)
                found = Axe().run(self.page)
                assert found.violations_count == 0, f"{name} {size} {scheme}: {found.generate_report()}"
            wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name} is wider than a {size}"
            assert self.page.locator("header").bounding_box()["height"] < HIGHEST_HEAD, f"{name} on a {size}"
        self.page.set_viewport_size(SIZES["desk"])
        self.page.emulate_media(color_scheme="light")


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


def test_every_role_finds_its_way(demo: str, browser: Any, tmp_path: Path) -> None:
    home = demo.split("/page/")[0]
    table, questions = tmp_path / "visits.csv", VISITS[:2].drop(columns="ill").to_csv(index=False)
    VISITS.to_csv(table, index=False)

    with person(browser, demo, tmp_path) as first:
        first.look("welcome")
        first.fill(Name="anna", Password=PASSWORD)
        first.press("Create the account")
        first.at("Data sets")
        first.broken.clear()
        assert first.sees("makers of cars")
        first.press("People", "link")
        for role in ("custodian", "analyst", "auditor", "operator"):
            first.at("People")
            first.fill(Name=role, First_password=PASSWORD)
            first.page.get_by_role("checkbox", name=role).check()
            first.press("Add")
            first.page.get_by_role("cell", name=role, exact=True).first.wait_for()
        first.look("people")
        first.page.get_by_label("Change: auditor").click()
        boxes = first.page.get_by_role("row", name="auditor").get_by_role("checkbox")
        assert [box.is_checked() for box in boxes.all()] == [False, False, True, False]
        boxes.nth(1).check()
        first.press("Save")
        first.page.get_by_role("row", name="auditor analyst, auditor").wait_for()  # drawn anew
        first.page.get_by_label("Change: auditor").click()
        boxes.nth(1).uncheck()
        first.press("Save")
        first.page.get_by_text("Tokens and sessions of auditor have ended").wait_for()

    with person(browser, home, tmp_path, "custodian") as custodian:
        custodian.look("data")
        custodian.fill(Name="visits", Whose_rows="patients of clinic X")
        custodian.press("Register")
        custodian.at("visits")
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
        custodian.page.get_by_text("All columns are reviewed").wait_for()
        custodian.press("Use this schema")
        custodian.page.get_by_text("3 columns, target").wait_for()
        custodian.look("set")

    with person(browser, home, tmp_path, "analyst") as analyst:
        analyst.press("visits", "link")
        analyst.press("Plan a training", "link")
        analyst.at("Expected quality")
        analyst.look("propose", anew=True)
        analyst.press("Create the plan")
        analyst.page.get_by_text("Waiting for a custodian's signature.").wait_for()
        plan = analyst.page.url
        assert not analyst.page.get_by_role("button", name="Sign this hash").count()

    with person(browser, home, tmp_path, "custodian") as custodian:
        custodian.press("Plans", "link")
        custodian.at("Plans")
        custodian.look("plans")
        custodian.page.goto(plan)
        custodian.at("What will be measured")
        custodian.look("plan", anew=True)
        custodian.press("Sign this hash")
        custodian.page.get_by_text("Signed by custodian").wait_for()

    with person(browser, home, tmp_path, "analyst") as analyst:
        analyst.page.goto(plan)
        analyst.press("Run")
        analyst.press("model", "link")
        analyst.at("What it has learned")
        analyst.press("Predict")
        analyst.page.get_by_role("img", name="Probability").wait_for()
        with analyst.page.expect_download() as download:
            analyst.page.get_by_label("The answer is a CSV file").set_input_files(table)
        assert Path(download.value.path()).read_text().count("\n") == len(VISITS) + 1
        analyst.look("model", anew=True)
        analyst.press("Plan an evaluation")
        analyst.page.get_by_text("Waiting for a custodian's signature.").wait_for()
        evaluation = analyst.page.url
        analyst.press("Tokens", "link")
        analyst.at("Tokens")
        analyst.fill(What_is_it_for="a script")
        analyst.page.get_by_role("checkbox", name="ask").check()
        analyst.press("Create a token")
        assert "vw_" in analyst.page.locator("pre").inner_text()
        analyst.look("tokens")
        analyst.fill(Current_password=PASSWORD, New_password=f"{PASSWORD}, newer")
        analyst.press("Change the password")
        analyst.page.get_by_text("You have no tokens.").wait_for()

    with person(browser, home, tmp_path, "custodian") as custodian:
        custodian.page.goto(evaluation)
        custodian.press("Sign this hash")
        custodian.press("Run")
        custodian.press("evaluation", "link")
        custodian.at("Measured quality")
        custodian.look("evaluation", anew=True)
        custodian.page.goto(f"{home}/page/index.html#/data/visits/plan")
        custodian.page.get_by_label("Estimator").select_option("MatrixForestPredictor subsample")
        custodian.fill(Epsilon="0.5")
        custodian.press("Create the plan")
        custodian.page.get_by_text('"subsample"').wait_for()
        custodian.press("Sign this hash")
        custodian.press("Run")
        custodian.press("private answers", "link")
        custodian.fill(Queries=questions)
        custodian.press("Quote")
        custodian.page.get_by_text("Costs epsilon 1/2").wait_for()
        custodian.look("ask")
        custodian.press("Charge and answer")
        custodian.page.get_by_role("listitem").nth(1).wait_for()
        with custodian.page.expect_download() as saved:
            custodian.press("Save it as JSON")
        assert json.loads(Path(saved.value.path()).read_text())["epsilon"] == 0.5
        custodian.press("Quote")
        custodian.page.get_by_text("Answered before: free.").wait_for()

    with person(browser, home, tmp_path, "auditor") as auditor:
        auditor.press("visits", "link")
        auditor.at("Ledger")
        auditor.page.get_by_role("cell", name="epsilon=1", exact=True).wait_for()
        auditor.press("Verify the hash chain")
        auditor.page.get_by_text("The ledger is intact").wait_for()
        auditor.look("ledger", anew=True)
        assert not auditor.page.get_by_role("link", name="Plan a training").count()
        assert not auditor.page.get_by_label("Upload a CSV").count()

    with person(browser, home, tmp_path, "operator") as operator:
        operator.press("visits", "link")
        operator.at("Schema")
        assert not operator.page.get_by_role("heading", name="Ledger").count()
        operator.press("People", "link")
        operator.at("People")
        operator.press("Log out")
        operator.at("Log in")
        operator.look("login")
