# SPDX-License-Identifier: Apache-2.0
"""Write the bill of materials of each package, which its wheel carries (PEP 770): packages/*/sbom.cdx.json.

Run: python packaging/sbom.py

A wheel of Python code contains nothing but this project's files, so its bill names the package and what it requires,
with the ranges of pyproject.toml: which versions are installed beside it is decided later, by whoever installs it. A
test fails when a bill is not that of its pyproject.toml.
"""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = ROOT / "packages" / "veilwood" / "src" / "veilwood" / "_version.py"


def bill_of(project: dict[str, Any]) -> str:
    """Return the bill of one package, in CycloneDX, from the table ``project`` of its pyproject.toml."""
    version = project.get("version") or re.findall(r'__version__.* = "(.+)"', VERSION_FILE.read_text())[0]
    address = f"pkg:pypi/{project['name']}@{version}"
    required = [(line, "required") for line in project["dependencies"]]
    for extra, lines in project.get("optional-dependencies", {}).items():
        required += [(line, f"optional: extra {extra}") for line in lines]
    components = [_component(line, use) for line, use in sorted(set(required))]
    bill: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": address, "name": project["name"], "version": version, "purl": address,
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "supplier": {"name": project["authors"][0]["name"]},
            }
        },
        "components": components,
        "dependencies": [{"ref": address, "dependsOn": [each["bom-ref"] for each in components]}],
    }  # fmt: skip
    # The number of a bill must be unique, and equal bills must have equal bytes: it follows from the content.
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bill, sort_keys=True))}"
    return json.dumps(bill, indent=1) + "\n"


def _component(line: str, use: str) -> dict[str, Any]:
    """Return a requirement as a component: its version is open, so its range is a property."""
    match = re.match(r"[A-Za-z0-9._-]+", line)
    assert match is not None, line
    name = re.sub(r"[-_.]+", "-", match[0]).lower()
    properties = [{"name": "veilwood:requirement", "value": line}, {"name": "veilwood:use", "value": use}]
    component = {"type": "library", "bom-ref": f"{use}/{line}", "name": name, "purl": f"pkg:pypi/{name}"}
    scope = "required" if use == "required" else "optional"
    return {**component, "scope": scope, "properties": properties}


def bills() -> dict[Path, str]:
    """Return the bill of every package, by its path."""
    found = {}
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        found[path.with_name("sbom.cdx.json")] = bill_of(tomllib.loads(path.read_text())["project"])
    return found


if __name__ == "__main__":
    for path, text in bills().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
