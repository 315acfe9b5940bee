"""The notebooks: each is its Python file, keeps little, and runs from top to bottom at a small size. Needs the extra `notebooks`."""

import base64
import importlib.util
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("jupytext")

ROOT = Path(__file__).parents[1]
NAMES = "tutorial", "write_a_rule", "distill_a_draft"
CONFTESTS = "JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION"  # stricter than what a user has
pytestmark = [pytest.mark.notebooks, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("notebooks_build", ROOT / "notebooks" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def said(builder):
    """What a notebook prints, and its outputs; run once for all tests that ask."""
    kept = {}

    def run(name):
        if name not in kept:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SPECJAX_NOTEBOOKS", "small")
                patch.setenv("PYTHONPATH", str(ROOT))
                for variable in CONFTESTS:
                    patch.delenv(variable, raising=False)
                cells = builder.run(builder.read(name)).cells
            outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
            texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
            assert not [output.text for output in outputs if output.get("name") == "stderr" and "Traceback" in output.text]
            kept[name] = "".join(texts), outputs
        return kept[name]

    return run


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_python_file(builder, name):
    made, there = builder.read(name), json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in there["cells"]] == [(c.cell_type, c.source) for c in made.cells]
    assert there["metadata"]["jupytext"] == {"formats": "ipynb,py:percent"}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_keeps_pictures_only_and_little_of_them(name):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    kept = [output for cell in cells for output in cell["outputs"]]
    assert all(list(output["data"]) == ["image/png"] for output in kept) and all(cell["execution_count"] is None for cell in cells)
    assert path.stat().st_size < 400_000
    assert len(kept) == {"tutorial": 10, "write_a_rule": 2, "distill_a_draft": 1}[name]
    assert all(base64.b64decode("".join(output["data"]["image/png"])).startswith(b"\x89PNG") for output in kept)


def test_all_install_alike(builder):
    [cell] = {next(c.source for c in builder.read(name).cells if "REPOSITORY" in c.source and c.cell_type == "code") for name in NAMES}
    assert 'REPOSITORY = ""' in cell and "jax[tpu]" in cell and "jax[cuda12]" in cell


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ({"jax"}, "jax"),
        ({"jax", "jax-cuda12-plugin"}, "jax[cuda12]"),
        ({"jax", "jax-cuda13-plugin"}, "jax[cuda13]"),
        ({"jax", "libtpu"}, "jax[tpu]"),
    ],
)
def test_what_is_installed_on_each_runtime(builder, there, wanted):
    """The functions of the install cell, on a machine that has only these."""
    source = next(c.source for c in builder.read("tutorial").cells if "def jax_here" in c.source)
    scope = {}
    exec(source.partition("ROOT = next")[0], scope)
    scope["installed"] = lambda name: "1.0" if name in there else None
    assert scope["jax_here"]() == wanted
    assert scope["Path"] is Path


# ---------------------------------------------------------------- from top to bottom


def shown(outputs) -> list[dict]:
    return [output["data"] for output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.real
def test_the_tutorial(said):
    text, outputs = said("tutorial")
    for line in (
        "plain: 8 steps, speculative: 2.8 steps, 2.86 times as fast",
        "draft .5 against target .2: accepted mass 0.2, rejection 0.3 in all, acceptance 0.7",
        "speculative: first token [0.2 0.5 0.3], total variation ",
        "shortcut: first token [0.26  0.463 0.278], total variation ",
        "three tokens: p/q accepts 0.70, coupled ",
        "alpha .8, K 4, c .10, v 1.00: 3.36 / 1.40 = 2.40",
        "coupled sampling, n-gram drafts and none: [True, True]",
    ):
        assert line in text, line
    exact, shortcut = (float(x) for x in re.findall(r"first token \[.*?\], total variation (\S+)", text))
    assert exact < 1e-6 and shortcut > 0.05
    assert "5 laws of 49152 tokens" in text
    assert float(re.search(r"largest difference (\S+)", text)[1]) < 1e-5
    assert all(int(bugs) == 0 for bugs in re.findall(r"'bugs': (\d+)", text)) and "'bugs'" in text
    assert len(re.findall(r"(?:refused in the middle|all accepted|first refused): \d+ of \d+ rounds; shown:", text)) == 3
    pictures = shown(outputs)
    assert len(pictures) == 10
    assert sum("application/vnd.jupyter.widget-view+json" in data for data in pictures) == 4


def test_write_a_rule(said):
    text, outputs = said("write_a_rule")
    assert "accepted 0.60; law of the first token [0.5 0.4 0.1]; target (0.5, 0.4, 0.1)" in text
    assert len(re.findall(r"floor \S+: PASS, total variation from the target at most \de-0[78]", text)) == 3
    assert "FAIL: iid: " in text and "PASS\n" not in text
    assert len(shown(outputs)) == 2


def test_distill_a_draft(said):
    text, outputs = said("distill_a_draft")
    before, after = map(float, re.search(r"predicted for drafts of 4: (\S+) -> (\S+)", text).groups())
    assert after > before + 0.05
    assert len(re.findall(r"^K=\d: \d\.\d\d tokens per pass, c = \d\.\d\d, speedup \d\.\d\d$", text, re.MULTILINE)) == 3
    assert len(shown(outputs)) == 1
