"""The small kind: what it says in training is what it says in the decode loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.training import losses, step, targets
from specjax.training.drafts import small
from specjax.training.plan import Optimizer
from specjax.training.rows import Batch, positions

TARGET = specjax.load("toy://tiny")
TEXT = TARGET.tokenizer.encode("the cat sat on the mat, and the dog sat on the log.")
ID_U = np.unique(TEXT).astype(np.int32)


def rows(*texts, length: int) -> Batch:
    """One row of several texts."""
    token, segment = np.zeros((1, length), np.int32), np.zeros((1, length), np.int32)
    at = 0
    for number, text in enumerate(texts, start=1):
        token[0, at : at + len(text)], segment[0, at : at + len(text)] = text, number
        at += len(text)
    return Batch(token, segment > 0, segment, np.asarray(positions(jnp.asarray(segment))))


def test_all_layers_of_the_target_say_what_it_says_in_packed_rows():
    """Over the words of the reduced vocabulary, at each place of which there are enough tokens before."""
    kind = small.over(TARGET, len(ID_U), (0, 1), 3, True)
    batch = rows(TEXT[:9], TEXT[20:31], length=24)
    params = kind.init(TARGET, ID_U, 0)
    made = jax.jit(kind.logits)(params, kind.frozen(TARGET, ID_U), batch)
    cache = TARGET.model.init_cache(1, 11)
    hidden_BTD, _, _ = TARGET.model.forward(TARGET.params, jnp.asarray([TEXT[20:31]]), cache, jnp.zeros(1, jnp.int32))
    wanted = np.asarray(TARGET.model.head(TARGET.params, hidden_BTD))[0][:, ID_U]
    for place, (logits_BTU, valid_BT) in enumerate(made):
        np.testing.assert_allclose(logits_BTU[0, 9:20], wanted, rtol=2e-5, atol=2e-5)
        assert np.flatnonzero(~valid_BT[0]).tolist() == [*range(place), *range(9, 9 + place), *range(20, 24)]
    assert params.keys() == {"layers", "norm_D", "head_DV"} and kind.frozen(TARGET, ID_U).keys() == {"embed_VD"}
    assert small.over(TARGET, None, (1,), 1, False).frozen(TARGET, None)["head_DV"].shape == (32, 257)


def test_it_overfits_one_text_and_then_drafts_it():
    """With greedy matching, every draft of the loop is accepted: the text is the target's own."""
    said = specjax.generate(TARGET, [TEXT[:8]], max_new_tokens=24).token_ids[0]
    id_U = np.unique([*said, 256]).astype(np.int32)
    kind = small.over(TARGET, len(id_U), (1,), 2, True)
    settings = Optimizer(steps=80, batch=1, learning_rate=1e-2, warmup=5)
    program = step.Program(kind, losses.Weighted(((1.0, losses.CE()),)), 1.0, settings, step.mesh(devices=jax.devices()[:1]))
    fixed = step.placed(program, step.Fixed(kind.frozen(TARGET, id_U), targets.place_of(id_U, 257)))
    batch = rows([*TEXT[:8], *said], length=32)
    batch = step.spread(program.mesh, batch._replace(mask_BT=np.arange(32)[None] >= 8))
    state = step.start(program, kind.init(TARGET, id_U, 0))
    before = jax.tree.map(np.asarray, state.params)
    for _ in range(settings.steps):
        state = step.train(program, fixed, state, batch)
    trained, untrained = (kind.drafter(params, fixed.frozen, id_U, 4, TARGET) for params in (state.params, before))
    outputs = [specjax.generate(TARGET, [TEXT[:8]], drafter=d, max_new_tokens=24) for d in (trained, untrained)]
    assert all(output.token_ids[0] == said for output in outputs)
    drafted, accepted = (outputs[0].counts[name].tolist() for name in ("drafted", "accepted"))
    assert drafted == accepted == [19]  # 24 tokens less one a round, of which there are five
    assert outputs[1].counts["accepted"] < outputs[1].counts["drafted"]


@pytest.mark.parametrize("layers", [(0, 2), (-1,)])
def test_a_layer_that_the_target_has_not_is_refused(layers):
    with pytest.raises(ValueError, match=r"draft.layers=\[.*\]: (2|-1) must be from 0 to 1, the layers of toy://tiny"):
        small.over(TARGET, None, layers, 1, False)


def test_sliding_layers_go_with_their_copies():
    config = specjax.models.config.ModelConfig(
        vocab=8, width=4, layers=4, heads=1, kv_heads=1, head_size=4, ff=4, tied=False, max_positions=8, window=3, sliding=(0, 2)
    )
    target = specjax.LM(specjax.models.border.LanguageModel(config), None, None, "t")
    assert small.over(target, None, (2, 3), 1, False).model.config.sliding == (0,)
    alone = small.over(target, None, (1, 3), 1, False).model.config
    assert alone.sliding == () and alone.window is None and alone.layers == 2
