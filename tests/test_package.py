# SPDX-License-Identifier: Apache-2.0
"""The package as others get it: a wheel and an sdist that work elsewhere, types that hold, a recipe that agrees."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import veilwood as vw
from veilwood import estimators
from veilwood.privacy.signature import generate_key_pair
from veilwood.release_pack.pack import write_pack
from veilwood_testing import typed_program
from veilwood_testing.release_packs import card_text

ROOT = Path(__file__).parents[1]
CORE = ROOT / "packages" / "veilwood"
PROJECT: dict[str, Any] = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]
PROGRAM = Path(typed_program.__file__)


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
def test_the_typed_program_runs(tmp_path: Path) -> None:
    assert typed_program.main(tmp_path).startswith("private: epsilon=2")


def test_the_typed_program_uses_every_public_name() -> None:
    named = set(re.findall(r"\bvw\.(\w+)", PROGRAM.read_text())) | set(estimators.__all__)
    assert set(vw.__all__) - named == set()  # type: ignore[attr-defined]


def test_the_conda_recipe_asks_for_what_the_project_asks_for() -> None:
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    listed = re.findall(r"^    - (\S+) >=(\S+)$", recipe.split("\n  run:\n")[1].split("\n\n")[0], flags=re.M)
    wanted = [re.fullmatch(r"([\w-]+)>=([\w.]+)(?:;.*)?", line) for line in PROJECT["dependencies"]]
    expected = {(match[1], match[2]) for match in wanted if match is not None}
    assert len(expected) == len(PROJECT["dependencies"])
    conda = {(name.removesuffix("-base"), least) for name, least in listed}
    assert conda == expected | {("python", PROJECT["requires-python"].removeprefix(">="))}


def test_no_extra_names_one_that_is_not_there() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {extra for lines in extras.values() for line in lines if (found := re.match(r"veilwood\[(.+)\]", line))
             for extra in found[1].split(",")}  # fmt: skip
    assert named <= set(extras)


def test_importing_loads_what_every_fit_needs_and_no_more() -> None:
    """Counted, not timed: what scikit-learn's forests load themselves is free, and heavy parts load when used."""
    loaded = "import sys, sklearn.ensemble; free = set(sys.modules); import veilwood; print(*(set(sys.modules) - free))"
    more = run(Path(sys.executable), "-c", loaded).split()
    others = {name.split(".")[0] for name in more} - {"veilwood"}
    assert others <= {"pyarrow", "safetensors", "sqlite3", "_sqlite3", "narwhals", "joblib", "threadpoolctl"}
    assert not any(name.startswith(("sklearn.", "scipy.", "pandas.")) for name in more)
    assert len(more) < 150
    assert not set(more) & {"pyarrow.dataset", "pyarrow._dataset", "pyarrow.parquet", "pyarrow.fs", "numba"}
    late = {
        "cli", "forests.greedy", "forests.medians", "forests.random_trees", "forests.adaptive", "forests.levelwise",
        "forests.matrix", "models.onnx", "plots", "search",
    }  # fmt: skip
    assert not [name for name in more for room in late if f"{name}.".startswith(f"veilwood.{room}.")]
    assert not [name for name in more if name.startswith("veilwood_")]


def test_every_public_name_is_there_though_it_loads_when_used() -> None:
    for package in (vw, vw.estimators):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="has no attribute 'PrivateForests'"):
            package.PrivateForests  # noqa: B018


def test_pictures_without_matplotlib_say_what_to_install() -> None:
    request = "import sys; sys.modules['matplotlib'] = None; import veilwood; veilwood.plots"
    result = subprocess.run([sys.executable, "-c", request], capture_output=True, text=True, check=False)
    assert "SetupError: figures need matplotlib. Hint: run pip install 'veilwood[plots]'." in result.stderr


@pytest.mark.slow
def test_wheel_and_sdist_work_in_an_environment_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("build")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", CORE)
    (wheel,), (sdist,) = ((tmp_path / "dist").glob(kind) for kind in ("*.whl", "*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    hidden = {path.name for path in unpacked.rglob(".*")} - {".gitignore"}  # the build adds that one by itself
    assert hidden == set(), "what lies in a work tree by chance is not for others"
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "again", unpacked)
    (again,) = (tmp_path / "again").glob("*.whl")
    inside = [set(zipfile.ZipFile(path).namelist()) for path in (wheel, again)]
    assert inside[0] == inside[1]
    tracked = {path.relative_to(CORE / "src").as_posix() for path in (CORE / "src" / "veilwood").rglob("*")
               if path.is_file() and "__pycache__" not in path.parts}  # fmt: skip
    assert tracked <= inside[0]
    # A new environment with this wheel, and below it the dependencies of this one; its veilwood is not on that path.
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    (packages / "below.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = run(python, "-c", "import veilwood; print(veilwood.__file__)", cwd=tmp_path).strip()
    assert where.startswith(str(tmp_path / "env"))
    assert "epsilon=2" in run(python, PROGRAM, cwd=tmp_path)
    assert "All checks passed." in run(tmp_path / "env" / "bin" / "veilwood", "doctor", cwd=tmp_path)


def installed(requirements: Sequence[str], extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """Return the distributions that are installed here for some requirements, with all that these require."""
    found: dict[str, Distribution] = {}
    for need in map(Requirement, requirements):
        applies = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})
        if applies and need.name not in found:
            found[need.name] = distribution(need.name)
            found |= installed(found[need.name].requires or [], frozenset(need.extras))
    return found


@pytest.mark.slow
def test_a_release_is_verified_where_only_the_core_is_installed(tmp_path: Path) -> None:
    """A new environment with the wheel and what it requires, nothing else; one changed byte is named there too."""
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist", "-t", "wheel", cwd=CORE)
    (wheel,) = (tmp_path / "dist").iterdir()
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    for each in installed(PROJECT["dependencies"]).values():
        for part in {path.parts[0] for path in each.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (packages / part).exists():
                (packages / part).symlink_to(Path(str(each.locate_file(part))))
    car, ledger = vw.datasets.car(), vw.SQLiteLedger(tmp_path / "car.db", epsilon=2)
    forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, ledger=ledger).fit(car.X, car.y, holdout_fraction=0.3)
    vw.save(forest, tmp_path / "car.veilwood")
    forest.evaluation_.save(tmp_path / "quality.json")
    (tmp_path / "card.toml").write_text(card_text())
    generate_key_pair(tmp_path / "clinic.key")
    archive = write_pack(
        tmp_path / "car.veilwood", tmp_path / "pack", ledger=ledger, key=tmp_path / "clinic.key",
        card=tmp_path / "card.toml", evaluation=tmp_path / "quality.json",
    )  # fmt: skip
    for path in (archive, tmp_path / "clinic.key.pub"):
        shutil.copy(path, tmp_path / "env")
    command = str(tmp_path / "env" / "bin" / "veilwood")
    verify = [command, "verify", archive.name, "--signed-by", "clinic.key.pub"]
    lines = run(*verify, cwd=tmp_path / "env").splitlines()
    assert {line.split()[0] for line in lines} == {"holds", "open"}
    content = bytearray(archive.read_bytes())
    content[content.index(b"<html")] ^= 1
    (tmp_path / "env" / archive.name).write_bytes(content)
    done = subprocess.run(verify, cwd=tmp_path / "env", capture_output=True, text=True)
    assert done.returncode == 4


@pytest.mark.slow
def test_mypy_agrees_with_the_typed_program_and_not_with_a_wrong_one(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
    ]
    run(*command, PROGRAM, cwd=tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text().replace("assert_type(plan, vw.Plan)", "assert_type(plan, vw.Schema)"))
    done = subprocess.run([*command, str(wrong)], cwd=tmp_path, capture_output=True, text=True)
    assert "assert-type" in done.stdout
