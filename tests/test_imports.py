"""Imports go downward only: who may import whom, in one table. The longest prefix that fits a module is its row."""

import ast
import importlib.util
import pathlib

import specjax

CORE = [
    "types", "shapes", "ancestry", "sampling", "sharding", "stops", "processors", "ingest", "state", "verify", "commit", "trace", "decode"
]  # fmt: skip
PLUGINS = ["models", "drafters", "rules", "lengths"]
ALLOWED = {  # module of specjax -> those it may import, with all below them; '' is specjax/__init__.py, the API
    "processes": [],
    "types": [],
    "sampling": ["types"],
    "ancestry": ["types"],
    "ingest": ["types"],
    "stops": ["types"],
    "processors": ["types", "sampling"],
    "sharding": ["types", "models.config"],
    "state": ["types", "sampling", "sharding", "stops"],
    "verify": ["types", "ancestry", "sampling", "processors", "state"],
    "commit": ["types", "ancestry", "state", "verify"],
    "price": ["types", "sampling"],
    "trace": ["types", "ancestry", "state", "verify", "price"],
    "decode": ["types", "ancestry", "sampling", "processors", "ingest", "sharding", "state", "verify", "commit", "trace"],
    "reference": [],
    "shapes": [],
    "models": ["types", "models"],
    "drafters": ["types", "ancestry", "sampling", "ingest", "shapes", "models", "drafters"],
    "rules": ["types", "sampling", "rules"],
    "lengths": ["types", "theory", "lengths"],
    "theory": ["shapes", "theory"],
    "prompts": ["models.load"],
    "lm": ["models", "sharding"],
    "parts": ["lm", *CORE, *PLUGINS],
    "refill": ["state", "sharding"],
    "decoder": ["lm", "parts", *CORE, *PLUGINS],
    "api": ["lm", "parts", "decoder", "refill", "state"],
    "trained": ["lm", "parts", "drafters", "lengths", "models", "sharding"],
    "": ["api", "trained", *CORE, *PLUGINS],
    "training": ["", "processes", "api", "lm", "parts", "refill", *CORE, *PLUGINS, "theory", "prompts", "training"],
    "training.targets": ["types"],
    "training.rows": ["types", "training.targets"],
    "training.losses": ["types", "training.rows", "training.targets"],
    "training.evaluate": ["types", "sampling", "theory", *(f"training.{part}" for part in ("rows", "targets", "losses"))],
    "training.on_policy": ["", "types", "refill", "rules"],
    "training.export": ["lm", "models", "training.drafts"],
    "build_training": ["", *CORE, *PLUGINS, "bench", "build", "training"],
    "train": ["", "processes", "bench", "report", "training", "build_training", "command", "signals", "stopping"],
    "stopping": ["processes", "bench", "command"],
    "bench": ["", "processes", "api", "parts", "refill", *CORE, *PLUGINS, "theory", "prompts", "bench"],
    "report": ["types", "theory", "bench", "report"],
    "report.figures": ["sampling", "rules", "theory", "report"],
    "report.methods": [*PLUGINS, "trained", "command"],
    "build": ["", "api", *CORE, *PLUGINS, "theory", "prompts", "bench"],
    "signals": ["processes"],
    "command": ["processes"],
    "run": ["", "processes", "api", *CORE, *PLUGINS, "theory", "prompts", "bench", "report", "build", "command", "signals", "stopping"],
    "certify": ["types", "shapes", "certify"],
    **{f"certify.{part}": ["", "lm", *CORE, *PLUGINS, "certify"] for part in ("loop", "drafter", "toys")},
    "certify.__main__": ["rules", "certify", "build", "command"],
    "best_tree": ["theory", "bench", "command"],
    "replay": ["bench", "report", "build", "command"],
    "compiled": [],
    "topology": [],
    "planned": ["", "lm", *CORE, *PLUGINS, "bench", "training"],
    "aot": ["theory", "bench", "report", "build", "build_training", "command", "compiled", "planned", "topology", "parts"],
    "doctor": ["", "api", "lm", *CORE, *PLUGINS, "prompts", "bench", "report", "build", "command", "compiled"],
}
OUTSIDE = {  # package that is not ours -> the only modules of specjax that may import it
    "flax": ["models.border", "models.eagle3", "models.layers", "models.transformer"],
    "ml_collections": ["build", "build_training", "command"],
    "optax": ["training.step"],
    "orbax": ["training.checkpoint"],
    **{name: ["report.figures"] for name in ("matplotlib", "PIL", "IPython", "ipywidgets")},
    "torch": [],
    "transformers": [],
    "llama_cpp": [],
}


def covers(prefix, name):
    return name == prefix or (prefix != "" and name.startswith(prefix + "."))


def module_name(path, root):
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def imports(path, package, modules):
    """Absolute names of all that a file imports; `from a import b` is a.b where that is a module, else a."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (full if (full := f"{base}.{alias.name}") in modules else base for alias in node.names)


def violations(root):
    paths = {module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    modules = {f"specjax.{name}" for name in paths} | {"specjax." + name.rpartition(".")[0] for name in paths}
    for name, path in paths.items():
        rows = [row for row in ALLOWED if covers(row, name)]
        if not rows:
            yield f"{name}: has no row in ALLOWED"
            continue
        package = ".".join(["specjax", *path.parent.relative_to(root).parts])
        allowed = ALLOWED[max(rows, key=len)]
        for target in imports(path, package, modules):
            top, _, rest = target.partition(".")
            ours = top == "specjax" and not any(covers(prefix, rest) for prefix in allowed)
            outside = top in OUTSIDE and not any(covers(prefix, name) for prefix in OUTSIDE[top])
            if ours or outside:
                yield f"{path.relative_to(root)} imports {target}"


def test_imports_go_downward_only():
    assert list(violations(pathlib.Path(specjax.__path__[0]))) == []


def test_reference_is_independent_of_jax():
    path = pathlib.Path(specjax.__path__[0]) / "reference.py"
    assert not {"jax", "jaxlib", "flax"} & {name.partition(".")[0] for name in imports(path, "specjax", set())}


def test_a_planted_import_is_found(tmp_path):
    for name, text in {
        "types.py": "import jax\nfrom specjax import decode\n",
        "decode.py": "from specjax.types import Law\nfrom . import types\n",
        "rules/greedy.py": "def rule():\n    import specjax.bench.measure\n",
        "rules/block.py": "from .greedy import rule\nfrom ..build import build\n",
        "models/layers.py": "from flax import nnx\n",
        "models/toy.py": "from flax import nnx\n",
        "build.py": "import ml_collections\nfrom specjax import generate\n",
        "models/load/gguf.py": "import gguf\nfrom specjax import generate\n",
        "spare.py": "",
        "bench/measure.py": "from specjax import rules\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert set(violations(tmp_path)) == {
        "types.py imports specjax.decode",
        "rules/greedy.py imports specjax.bench.measure",
        "rules/block.py imports specjax.build",
        "models/toy.py imports flax",
        "models/load/gguf.py imports specjax",
        "spare: has no row in ALLOWED",
    }
