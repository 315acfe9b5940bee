import dataclasses
import subprocess

import tiny_run

from specjax.bench import manifest


def test_a_manifest_says_where_and_on_what():
    notes = tiny_run.finished()[0].read("manifest.json")
    assert set(notes) == {
        "versions", "device", "commit", "command", "seeds", "source", "sha256", "fingerprint", "dtype", "size", "parts", "ladders",
        "seconds", "compiled_programs", "costs", "wall_seconds",
    }  # fmt: skip
    assert notes["command"] == ["python"] and notes["seeds"] == {"decoding": 0} and notes["dtype"] == "float32"
    assert notes["size"] == 128 and notes["ladders"]["match"] == [1, 3] and notes["wall_seconds"] > 0
    assert set(notes["versions"]) == {"specjax", "python", "jax", "jaxlib", "flax", "numpy"}


def test_a_manifest_names_the_bytes_of_the_weights():
    experiment = dataclasses.replace(tiny_run.experiment(), target=dataclasses.replace(tiny_run.experiment().target, sha256="ab"))
    assert manifest.manifest(experiment, [], {}, {})["sha256"] == "ab"
    assert tiny_run.finished()[0].read("manifest.json")["sha256"] is None  # a toy has no file


def test_the_commit_of_a_repository_and_of_none(tmp_path):
    def git(*args):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=tmp_path, check=True)

    (tmp_path / "__init__.py").write_text("")
    assert manifest.commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("")
    git("add", "__init__.py")
    git("commit", "-qm", "one")
    assert manifest.commit(tmp_path / "other") is None  # a repository, but not of this file
    (tmp_path / "other" / "__init__.py").unlink()
    clean = manifest.commit(tmp_path)
    assert len(clean["id"]) == 40 and clean["dirty"] is False
    (tmp_path / "__init__.py").write_text("1")
    assert manifest.commit(tmp_path) == {"id": clean["id"], "dirty": True}
