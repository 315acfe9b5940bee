"""Where and on what a run was made: enough to make it again, and to doubt it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import jax

import specjax
from specjax.bench.measure import Costs
from specjax.bench.plan import Experiment

PACKAGES = ("jax", "jaxlib", "flax", "numpy")


def manifest(experiment: Experiment, command: list[str], compile_seconds: dict[str, dict[str, float]], costs: dict[str, Costs]) -> dict:
    """The content of manifest.json, but for the wall time."""
    return {
        "versions": {
            "specjax": specjax.__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "device": {
            "backend": jax.default_backend(),
            "kind": jax.local_devices()[0].device_kind,
            "count": jax.device_count(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
        "commit": commit(Path(specjax.__file__).parent),
        "command": command,
        "seeds": {"decoding": experiment.plan.seed},
        "source": experiment.target.source,
        "sha256": experiment.target.sha256,
        "fingerprint": experiment.fingerprint,
        "dtype": experiment.target.dtype.name,
        "size": experiment.size,
        "parts": {arm.name: _parts(arm.decoder.setup) for arm in experiment.arms},
        "ladders": {arm.name: list(arm.decoder.setup.ladder) for arm in experiment.arms},
        "seconds": {"load": experiment.load_seconds, "compile": compile_seconds},
        "compiled_programs": sum(s > 0 for both in compile_seconds.values() for s in both.values()),
        "costs": {name: cost.to_json() for name, cost in costs.items()},
    }


def costs(notes: dict, arms: list[str], where: str) -> dict[str, Costs]:
    """The costs in a manifest. ValueError, beginning with `where`, if it lacks what a run that goes on takes from it."""
    try:
        compiled, wall = notes["seconds"]["compile"], notes["wall_seconds"]
        if "fingerprint" in notes and isinstance(wall, float) and set(arms) <= set(compiled):
            return {name: Costs.from_json(notes["costs"][name]) for name in arms}
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{where}: is no whole manifest: name another folder")


def _parts(setup) -> dict[str, str]:
    """The names of what plugged in, those that the config left to the decoder too."""
    chosen = {"drafter": setup.drafter, "rule": setup.rule, "length": setup.length}
    return {kind: getattr(part, "name", type(part).__name__) for kind, part in chosen.items()}


def commit(folder: Path) -> dict | None:
    """{"id", "dirty"} of the repository that tracks `folder`; None without one."""
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        return {"id": _git(folder, "rev-parse", "HEAD"), "dirty": bool(_git(folder, "status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
