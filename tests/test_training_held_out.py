import jax
import numpy as np
import tiny_training
from tiny_training import program

from specjax.training import evaluate
from specjax.training.held_out import HeldOut
from specjax.training.pack import Packed


def test_the_last_batch_is_filled_up_with_rows_that_do_not_count():
    made = program()
    rows = tiny_training.batch(5, count=5)._replace(law=None)
    packed = Packed(*rows[:4])
    params = jax.tree.map(np.asarray, made.kind.init())
    few, whole = (HeldOut(packed, None, size).figures(made, tiny_training.fixed(made), params, 0.0) for size in (2, 5))
    logits = made.kind.logits(params, {"scale": np.float32(1.5)}, rows)
    wanted = evaluate.figures(evaluate.tally(logits, rows, 0, tiny_training.PLACE_V))
    assert few == whole and few["roots"] == wanted["roots"] > 0
    np.testing.assert_allclose(few["overlap"], wanted["overlap"], rtol=1e-6)
    assert [len(batch.token_BT) for batch in HeldOut(packed, None, 2).batches] == [2, 2, 2]
