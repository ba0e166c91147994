"""The four top folders are one import root: on disk, in the sdist, in the wheel and installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAPPED = ("engine", "grammars", "tui")
SUFFIXES = (".py", ".c", ".h", ".lark", ".tcss", ".toml", ".yaml")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "flowforge", *MAPPED)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packed: a build writes beside its sources."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="session")
def dist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and, built from that sdist, the wheel."""
    built = tmp_path_factory.mktemp("dist")
    run_python("-m", "build", "--no-isolation", "--outdir", str(built), str(tree), cwd=tree)
    return built


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed in it and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    run_python(
        *("-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--target", str(target), str(wheel)),
        cwd=target,
    )
    return target


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top_level = {name.split("/")[0] for name in archive.namelist()}

    assert {"flowforge"} == {name for name in top_level if not name.endswith(".dist-info")}


def test_the_wheel_has_every_module_and_data_file_of_the_four_folders(
    wheel: Path, tree: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("flowforge/")}

    sources = {as_installed(path).as_posix() for path in source_files(tree)}
    assert sources == packed
    assert {f"flowforge/{folder}/py.typed" for folder in MAPPED} < packed


def test_the_sdist_holds_no_links_and_the_licence(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")

    with tarfile.open(sdist) as archive:
        members = archive.getmembers()

    assert [] == [member.name for member in members if member.issym() or member.islnk()]
    assert any(member.name.endswith("/LICENSE") for member in members)


@pytest.mark.parametrize("module", ["flowforge", *(f"flowforge.{name}" for name in MAPPED)])
def test_the_installed_wheel_imports_from_another_directory(
    module: str, installed: Path, tmp_path: Path
) -> None:
    code = f"import {module}, flowforge.errors; print({module}.__file__)"

    printed = run_python("-c", code, cwd=tmp_path, path=installed).stdout

    assert Path(printed.strip()).is_relative_to(installed)


def test_the_installed_command_prints_its_help(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "flowforge"

    printed = run_python(str(command), "--help", cwd=tmp_path, path=installed).stdout

    assert "check" in printed
    assert "run" in printed


@pytest.mark.parametrize("folder", MAPPED)
def test_a_bare_folder_name_is_no_module(folder: str) -> None:
    finished = start_python("-c", f"import {folder}", cwd=ROOT)

    assert 1 == finished.returncode
    assert f"ImportError: import 'flowforge.{folder}', not '{folder}'" in finished.stderr


def test_the_package_list_equals_the_folders_on_disk() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

    folders = {path.parent for path in source_files(ROOT) if path.suffix == ".py"}
    package_to_folder = {
        ".".join(as_installed(folder).parts): folder.as_posix() for folder in folders
    }
    assert sorted(package_to_folder) == sorted(setuptools["packages"])
    mapped = {
        package: folder
        for package, folder in package_to_folder.items()
        if package == "flowforge" or not folder.startswith("flowforge")
    }
    assert mapped == setuptools["package-dir"]


def test_every_package_folder_has_an_init_file() -> None:
    folders = {path.parent for path in source_files(ROOT) if path.suffix == ".py"}

    assert [] == [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()]


@pytest.mark.parametrize("folder", MAPPED)
def test_the_links_for_type_checkers_are_relative(folder: str) -> None:
    link = ROOT / "flowforge" / folder

    assert f"../{folder}" == os.readlink(link)


def test_the_links_for_type_checkers_are_committed_as_links() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--stage", *(f"flowforge/{folder}" for folder in MAPPED)]

    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert [f"120000 flowforge/{folder}" for folder in MAPPED] == [
        f"{line.split()[0]} {line.split()[-1]}" for line in listed.splitlines()
    ]


def test_imports_point_one_way() -> None:
    command = str(Path(sys.executable).with_name("lint-imports"))

    finished = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert 0 == finished.returncode, finished.stdout + finished.stderr


def as_installed(path: Path) -> Path:
    """Where a file or folder of the tree lies once it is installed."""
    return Path("flowforge") / path if path.parts[0] in MAPPED else path


def source_files(root: Path) -> list[Path]:
    """Modules and package data of the four folders, relative to the root, links not followed."""
    found: list[Path] = []
    for top in ("flowforge", *MAPPED):
        for folder, _, names in os.walk(root / top):
            found += [
                (Path(folder) / name).relative_to(root)
                for name in names
                if name.endswith(SUFFIXES) or name == "py.typed"
            ]
    return found


def run_python(
    *arguments: str, cwd: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    finished = start_python(*arguments, cwd=cwd, path=path)
    assert 0 == finished.returncode, finished.stdout + finished.stderr
    return finished


def start_python(
    *arguments: str, cwd: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this Python elsewhere; `path` goes before what is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
