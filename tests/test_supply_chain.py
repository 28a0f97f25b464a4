# SPDX-License-Identifier: Apache-2.0
"""How packages are built and published: the same bytes every time, a bill of materials inside, no secret to steal.

Pinned actions, permissions, licences and metadata are checked by the linters of ``make style``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from veilwood_testing import ROOT

PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
RELEASE: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def bills() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "packaging" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[Path, str] = module.bills()
    return found


def build(package: Path, folder: Path, *, umask: int, time: int) -> list[Path]:
    """Build wheel and sdist of a copy of a package whose files have other times and permissions."""
    copy = folder / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in copy.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (time, time))
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist"), "-t", "wheel", "-t", "sdist"]
    variables = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": str(time % 1000)}
    done = subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted((folder / "dist").iterdir())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_that_is_built_twice_has_the_same_bytes(package: Path, tmp_path: Path) -> None:
    one = build(package, tmp_path / "one", umask=0o022, time=1_600_000_000)
    other = build(package, tmp_path / "other", umask=0o077, time=1_650_000_000)
    assert [path.name for path in one] == [path.name for path in other]
    assert [path.suffix for path in one] == [".whl", ".gz"] or [path.suffix for path in one] == [".gz", ".whl"]
    for own, theirs in zip(one, other, strict=True):
        assert own.read_bytes() == theirs.read_bytes(), own.name
    (wheel,) = (path for path in one if path.suffix == ".whl")
    (sdist,) = (path for path in one if path.suffix == ".gz")
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = (name for name in archive.namelist() if re.search(r"\.dist-info/sboms/", name))
        assert archive.read(inside) == (package / "sbom.cdx.json").read_bytes()
    with tarfile.open(sdist) as source:
        assert any(name.endswith("/sbom.cdx.json") for name in source.getnames())
    check = Path(sys.executable).with_name("check-wheel-contents")
    if check.exists():
        done = subprocess.run([check, wheel], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_bills_of_materials_are_those_of_the_packages() -> None:
    expected = bills()
    assert [path.parent for path in expected] == PACKAGES
    stale = [path.relative_to(ROOT) for path, text in expected.items() if path.read_text() != text]
    assert stale == [], "run: python packaging/sbom.py"
    for text in expected.values():
        bill = json.loads(text)
        references = [each["bom-ref"] for each in bill["components"]]
        assert len(set(references)) == len(references)
        assert bill["dependencies"][0]["dependsOn"] == references


def test_what_publishes_runs_no_code_of_the_repository_and_holds_no_secret() -> None:
    assert RELEASE["permissions"] == {}
    publish = RELEASE["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]
    assert not any("run" in step or "checkout" in step["uses"] for step in publish["steps"])
    build_job = RELEASE["jobs"]["build"]
    assert build_job["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_every_action_is_pinned_to_a_commit() -> None:
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = [line for text in texts for line in re.findall(r"uses: (.+)", text)]
    assert len(used) > 15
    assert [line for line in used if not re.match(r"[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_the_licence_text_is_one() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    copies = [ROOT / "LICENSES" / "Apache-2.0.txt", *(package / "LICENSE" for package in PACKAGES)]
    assert [path for path in copies if path.read_bytes() != text] == []
