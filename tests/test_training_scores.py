"""Scores: packed rows say what each text says alone, on the fly and from disk."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_chat

from specjax import LM
from specjax.models import toy
from specjax.training import scores
from specjax.training.pack import Packed, pack
from specjax.training.rows import Batch
from specjax.training.scores import Rows, Teacher, keep

SIZES = [7, 5, 3, 9, 4, 6, 8]
T = 12


@functools.cache
def target():
    """Its positions are learnt: unlike turned ones they show where in a row a text stands."""
    model, params = toy.tiny(scale=8.0, config=dataclasses.replace(toy.TINY, learned_positions=True))
    return LM(model, params, toy.ByteTokenizer(), "tiny")


@functools.cache
def texts():
    draw = np.random.default_rng(0)
    return [(draw.integers(0, 257, size).astype(np.int32), np.ones(size, bool)) for size in SIZES]


@functools.cache
def packed():
    return pack(texts(), T)[0]


def batch_of(packed: Packed) -> Batch:
    return Batch(*packed)


@functools.cache
def alone():
    """(hidden states after each layer, probabilities) of each text, by the model itself; what is behind a text is not seen from it."""
    model = target().model

    @jax.jit
    def pass_over(params, token_1T):
        hidden, taps, _ = model.forward(params, token_1T, model.init_cache(1, T), jnp.zeros(1, jnp.int32), taps=(0, 1))
        return taps, jax.nn.softmax(model.head(params, hidden), axis=-1)

    made = []
    for token, _ in texts():
        taps, law = pass_over(target().params, np.pad(token, (0, T - len(token)))[None])
        made.append(([np.asarray(x[0, : len(token)]) for x in taps], np.asarray(law[0, : len(token)])))
    return made


def places(packed: Packed):
    """(row, slice) of each text, in the order of the texts."""
    found = {}
    for n, (segment_T, token_T) in enumerate(zip(packed.segment_NT, packed.token_NT, strict=True)):
        for s in range(1, segment_T.max() + 1):
            where = np.flatnonzero(segment_T == s)
            found[token_T[where].tobytes()] = n, slice(where[0], where[-1] + 1)
    return [found[token.tobytes()] for token, _ in texts()]


@pytest.mark.parametrize("logits_bytes", [scores.LOGITS_BYTES, 4 * 257 * 4 * 5])  # all places at once; five at a time
def test_rows_say_what_each_text_says_alone(monkeypatch, logits_bytes):
    monkeypatch.setattr(scores, "LOGITS_BYTES", logits_bytes)
    jax.clear_caches()
    assert len(packed().token_NT) == 4
    scored = Teacher(target(), (0, 1))(batch_of(packed()))
    assert scored.law.p_XN.shape == (4, T, 257) and scored.law.id_XN is None
    for (row, where), (taps, law_TV) in zip(places(packed()), alone(), strict=True):
        np.testing.assert_allclose(scored.law.p_XN[row, where], law_TV, atol=1e-5)
        for feature_BTD, tap_TD in zip(scored.features, taps, strict=True):
            np.testing.assert_allclose(feature_BTD[row, where], tap_TD, atol=1e-5)


def test_top_names_the_likeliest():
    scored = Teacher(target(), (1,), top=5)(batch_of(packed()))
    for (row, where), (_, law_TV) in zip(places(packed()), alone(), strict=True):
        best = np.argsort(-law_TV, axis=-1, kind="stable")[:, :5]
        assert np.array_equal(scored.law.id_XN[row, where], best)
        np.testing.assert_allclose(scored.law.p_XN[row, where], np.take_along_axis(law_TV, best, axis=-1), atol=1e-5)
    np.testing.assert_allclose(scored.law.p_XN.sum(-1) + scored.law.rest_X, 1, atol=1e-5)
    assert len(scored.features) == 1


def test_what_is_kept_is_what_was_scored(tmp_path, monkeypatch):
    teacher = Teacher(target(), (0, 1), top=5)
    monkeypatch.setattr(scores, "SHARD_BYTES", 1)  # a batch a shard
    monkeypatch.setattr(scores, "BATCH", 3)
    said = []
    rows = Rows(packed(), keep(packed(), teacher, tmp_path, said.append))
    assert len(rows) == 4 and [line.split(",")[0] for line in said] == ["scores 1/2: 3 rows", "scores 2/2: 1 rows"]
    scored = teacher(batch_of(packed()))
    for n in range(4):
        row = rows[n]
        assert row.token_BT.tolist() == packed().token_NT[n].tolist()
        assert [x.dtype for x in row.features] == [jnp.bfloat16] * 2 and row.law.id_XN.dtype == np.int32
        for kept, x in zip(row.features, scored.features, strict=True):
            np.testing.assert_allclose(kept.astype(np.float32), x[n], rtol=2**-8, atol=1e-5)
        assert np.array_equal(row.law.id_XN, scored.law.id_XN[n])
        np.testing.assert_allclose(row.law.p_XN, scored.law.p_XN[n], atol=1e-6)
        np.testing.assert_allclose(row.law.rest_X, scored.law.rest_X[n], atol=1e-6)
    keep(packed(), teacher, tmp_path, lambda line: pytest.fail("nothing was missing"))
    [store] = tmp_path.iterdir()
    whole = tiny_chat.files(store)
    (store / "index.json").unlink()
    (store / "00001.npy").unlink()
    keep(packed(), teacher, tmp_path, said.append)
    assert tiny_chat.files(store) == whole
    others = Teacher(target(), (1,), top=5), teacher
    for teacher, rows in zip(others, (packed(), Packed(*(x[:2] for x in packed()))), strict=True):
        assert len(Rows(rows, keep(rows, teacher, tmp_path, said.append))[0].features) == len(teacher.taps)
    assert len(list(tmp_path.iterdir())) == 3 and tiny_chat.files(store) == whole


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"taps=\(2,\): the target has no layer 2, it has 0 .. 1"):
        Teacher(target(), (2,))
    with pytest.raises(ValueError, match="top=258 must be None or between 1 and 257"):
        Teacher(target(), top=258)
    with pytest.raises(ValueError, match="cache=True needs top"):
        keep(packed(), Teacher(target()), tmp_path, print)


def test_what_is_not_finite_is_not_kept(tmp_path, monkeypatch):
    teacher = Teacher(target(), (0,), top=2)
    monkeypatch.setattr(Teacher, "__call__", lambda self, batch: scored._replace(features=(scored.features[0].at[0, 0, 0].set(jnp.inf),)))
    scored = batch_of(packed())._replace(
        features=(jnp.zeros((4, T, 32)),),
        law=scores.TargetLaw(jnp.zeros((4, T, 2)), jnp.zeros((4, T, 2), jnp.int32), jnp.zeros((4, T))),
    )
    with pytest.raises(FloatingPointError, match=r"features or laws of rows 0 .. 3 are not finite"):
        keep(packed(), teacher, tmp_path, print)
