"""The real 135M model over meshes of eight devices says what it says on one, up to ties. Its three key-value heads are whole on every
device of the model axis; its feed-forward and its vocabulary are split.

This process has one device; what needs eight runs in another, which this file starts once.
"""

import dataclasses
import json
import subprocess
import sys

import pytest
import tiny_run
from test_sharding import EIGHT
from test_shipped_draft import DRAFT

from specjax import build
from specjax.bench import agree, sweep
from specjax.models.load import fetch

BATCH = {"data:8": 8, "model:8": 2, "data:2,model:4": 2}  # of two prompts; other rows have nothing to do
BOTH = dict(name="combined", first=dict(name="ngram", most=2), second=dict(name="trained", path=str(DRAFT), most=2))  # one program


def experiment(*meshes, over=None):
    """An arm for each mesh, named by it, and the plain arm."""
    config = tiny_run.get_config().unlock()
    config.target.source = fetch.SMOLLM2
    config.arms = tuple(dict(name=mesh, drafter=BOTH, ladder=[3], sampling=tiny_run.GREEDY) for mesh in meshes)
    config.prompts.limit, config.max_new_tokens, config.mesh, config.batch = 2, 6, over, BATCH.get(over, 2)
    return build.load(build.plan(config))


def rows(experiment, name: str) -> list[dict]:
    (arm,) = (arm for arm in experiment.arms if arm.name == name)
    arm.decoder.setup = dataclasses.replace(arm.decoder.setup, chunk=16)  # prompts are short
    return [row for _, row, _ in sweep.decode_batch(experiment, sweep.first_batch(experiment, arm), {})]


def on_eight_devices() -> dict:
    """Agreement with one device and every difference, tokens that were drafted and kept, and notes of how the model lies, by mesh."""
    one, said, notes = experiment(*BATCH), {}, {}
    for mesh in BATCH:
        made = experiment(mesh, over=mesh)
        said[mesh], notes[mesh] = rows(made, mesh), made.target.notes
    agreements, differences = agree.compare(one, sum(said.values(), rows(one, "plain greedy")))
    counts = {mesh: [[row["counts"][name] for name in ("drafted", "accepted")] for row in said[mesh]] for mesh in BATCH}
    return {"agreements": agreements, "differences": differences, "counts": counts, "notes": notes}


if __name__ == "__main__":
    print(json.dumps(on_eight_devices()))
    sys.exit()


@pytest.mark.real
@pytest.mark.processes
def test_the_real_model_says_the_same_over_every_mesh():
    """Greedy, where one row copies and the other drafts."""
    process = subprocess.run([sys.executable, __file__], env=EIGHT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.splitlines()[-1])
    assert found["agreements"].keys() == BATCH.keys()
    assert {mesh: bugs for mesh, (_, _, bugs, _) in found["agreements"].items() if bugs} == {}, found["differences"]
    equal = [mesh for mesh, (equal, *_) in found["agreements"].items() if equal == 2]
    assert all(found["counts"][mesh] == found["counts"][equal[0]] for mesh in equal)
    assert all(0 < accepted < drafted for counts in found["counts"].values() for drafted, accepted in counts)
    whole = "does not divide 3 key-value heads: they are whole on every device"
    assert found["notes"] == {"data:8": [], "model:8": [f"model:8 {whole}"], "data:2,model:4": [f"model:4 {whole}"]}
