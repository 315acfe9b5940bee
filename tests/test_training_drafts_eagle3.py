"""The training function and the decode loop say the same law, at every place of a draft."""

import jax
import jax.numpy as jnp
import loop
import numpy as np
import tiny_eagle

import specjax
from specjax import Sampling
from specjax.training import rows
from specjax.training.drafts import eagle3

PROMPTS = [[1, 2, 3, 1, 2, 4, 1, 2], [4, 5, 4, 5, 6]]


def packed(target, texts, spare=5):
    """The texts in one row, with the target's features of each read alone."""
    T = sum(map(len, texts)) + spare
    token, segment = np.zeros((1, T), np.int32), np.zeros((1, T), np.int32)
    features, starts, at = [np.zeros((1, T, target.model.config.width), np.float32) for _ in tiny_eagle.TAPS], [], 0
    for number, text in enumerate(texts, 1):
        place = slice(at, at + len(text))
        token[0, place], segment[0, place] = text, number
        cache, cursor_B = target.model.init_cache(1, len(text)), jnp.zeros(1, jnp.int32)
        _, tapped, _ = target.model.forward(target.params, jnp.asarray([text], jnp.int32), cache, cursor_B, taps=tiny_eagle.TAPS)
        for mine, theirs in zip(features, tapped, strict=True):
            mine[:, place] = theirs
        starts.append(at)
        at += len(text)
    features = tuple(map(jnp.asarray, features))
    segment_BT = jnp.asarray(segment)
    return rows.Batch(jnp.asarray(token), jnp.ones((1, T), bool), segment_BT, rows.positions(segment_BT), features), starts


def test_a_row_of_training_says_what_the_loop_drew_from():
    target = tiny_eagle.target()
    kind = eagle3.over(target, None, tiny_eagle.TAPS, 3, True)
    params, frozen = kind.init(target, None, 0), kind.frozen(target, None)
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(3), x.shape) * x.std(), params)
    drafter = kind.drafter(params, frozen, None, 3, target)
    rule = specjax.Lenient(lenience=np.float32(1e-3))  # long accepted drafts
    *_, last = loop.rounds(
        specjax.Decoder(target, drafter=drafter, sampling=Sampling(temperature=1.0), rule=rule, ladder=(4,)), PROMPTS, 24
    )
    batch, starts = packed(target, [ids[: n + 1] for ids, n in zip(last.token_BS.tolist(), last.cursor_B, strict=True)])
    places = [(jax.nn.softmax(logits_BTU, axis=-1), valid_BT) for logits_BTU, valid_BT in kind.logits(params, frozen, batch)]
    seen = [0, 0, 0]
    for row, start in enumerate(starts):
        for turn in range(last.counts.rounds_B[row]):
            root = last.trace.root_BN[row, turn]
            for place in range(min(last.trace.drafted_BN[row, turn], last.trace.committed_BN[row, turn] - 1)):
                law_BTU, valid_BT = places[place]
                at = start + root + place
                assert valid_BT[0, at]
                token = last.trace.token_BNM[row, turn, place + 1]
                np.testing.assert_allclose(law_BTU[0, at, token], last.trace.q_BNM[row, turn, place + 1], atol=1e-5)
                seen[place] += 1
    assert min(seen) >= 3


def test_rows_too_near_a_beginning_are_not_valid():
    target = tiny_eagle.target()
    kind = eagle3.over(target, None, tiny_eagle.TAPS, 3, True)
    batch, _ = packed(target, [[1, 2, 3, 4], [5, 6]], spare=1)
    valid = [valid_BT[0].astype(int).tolist() for _, valid_BT in kind.logits(kind.init(target, None, 0), kind.frozen(target, None), batch)]
    assert valid == [[0, 1, 1, 1, 0, 1, 0], [0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0]]


def test_it_starts_as_the_targets_own_last_look():
    """Fusion passes the highest feature on, norm and head are the target's."""
    target = tiny_eagle.target()
    id_U = np.asarray([3, 5, 200], np.int32)
    kind = eagle3.over(target, 3, tiny_eagle.TAPS, 2, False)
    params, frozen = kind.init(target, id_U, 0), kind.frozen(target, id_U)
    features = tuple(jax.random.normal(jax.random.key(i), (1, 4, 32)) for i in range(2))
    np.testing.assert_array_equal(kind.model.fuse(params | frozen, features), features[1])
    hidden = features[0]
    np.testing.assert_allclose(kind.model.head(params | frozen, hidden), target.model.head(target.params, hidden)[..., id_U], rtol=1e-6)
    assert "head_DV" not in params and frozen["head_DV"].shape == (32, 3)
