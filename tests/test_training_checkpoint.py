import jax
import numpy as np
import pytest
from tiny_training import batch, program, train

from specjax.training import step
from specjax.training.checkpoint import FOLDER, Checkpoints, data_kept, steps_kept


@pytest.fixture(scope="module")
def states():
    made, state = program(), None
    kept = []
    for i in range(4):
        state = train(made, [batch(i)], state)
        kept.append(step.placed(made, state))
    return kept


def equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_the_latest_and_the_best_are_kept_and_come_back_bit_for_bit(states, tmp_path):
    like = step.start(program(), program().kind.init())
    with Checkpoints(tmp_path) as kept:
        assert kept.latest is None and steps_kept(tmp_path) is None and data_kept(tmp_path) is None
        for state, score in zip(states, [1.5, 2.5, 2.0, None], strict=True):
            kept.save(state, {"feed": {"next_index": int(state.step)}, "drawn": [[[1, 2], 1]]}, score)
    (tmp_path / FOLDER / "5.orbax-checkpoint-tmp").mkdir()  # killed while it wrote
    assert steps_kept(tmp_path) == 4
    with Checkpoints(tmp_path) as kept:
        assert (kept.latest, kept.best) == (4, 2)
        state, data = kept.restore(like)
        best = kept.restore_best(like)
        kept.save(states[3]._replace(step=states[3].step + 1), {"drawn": []}, None)  # only now what was killed is surely swept away
    assert {path.name for path in (tmp_path / FOLDER).iterdir() if path.is_dir()} == {"2", "5"}
    assert data_kept(tmp_path) == {"drawn": []}
    assert equal(state, states[3]) and not equal(state, states[2]) and equal(best, states[1].params)
    assert data == {"feed": {"next_index": 4}, "drawn": [[[1, 2], 1]]}


def test_a_state_of_another_shape_is_refused(states, tmp_path):
    with Checkpoints(tmp_path) as kept:
        kept.save(states[0], {}, None)
        other = states[0]._replace(params={**states[0].params, "more_D": states[0].params["bias_U"]})
        with pytest.raises(ValueError):
            kept.restore(other)
