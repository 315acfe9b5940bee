import jax
import numpy as np
import tiny_chat
import tiny_training
from tiny_training import program

from specjax.training import evaluate, held_out
from specjax.training.held_out import HeldOut
from specjax.training.pack import Packed
from specjax.training.plan import Evaluate


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


def test_other_prompts_and_other_answers_have_a_folder_of_their_own(tmp_path, monkeypatch):
    folders, prompts = [], tmp_path / "mine.txt"
    monkeypatch.setattr(held_out.answers, "make", lambda asked, target, folder, *rest, **more: folders.append(folder))
    monkeypatch.setattr(held_out.shards, "read", lambda place: [(np.arange(5), np.arange(5) > 2)])
    for text, changed in (("one", {}), ("one", {}), ("two", {}), ("one", dict(new_tokens=9)), ("one", dict(temperature=1.0)), ("one", {})):
        prompts.write_text(text)
        held_out.answered(Evaluate(prompts=str(prompts), **changed), tiny_chat.target(), tmp_path / "held_out", print, 0)
    assert folders[0] == folders[1] == folders[5] and len(set(folders)) == 4
    assert {folder.parent for folder in folders} == {tmp_path / "held_out"}
