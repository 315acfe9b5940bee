"""Acceptance as predicted from held-out rows, against exact values, a count in words, and the decode loop itself."""

import jax
import jax.numpy as jnp
import loop
import numpy as np
import pytest

import specjax
from specjax.theory import acceptance, latency
from specjax.training import targets
from specjax.training.evaluate import Tally, add, figures, tally
from specjax.training.rows import Batch, positions

K, V, ID_U = 3, 7, np.array([0, 1, 3, 4, 6], np.int32)
PLACE = targets.place_of(ID_U, V)
run = jax.jit(tally, static_argnames="temperature")


def test_conditional_rates_give_the_tokens_of_a_pass():
    counted = Tally(np.array([950.0, 850, 600]), np.full(3, 1000.0), np.array([1000.0, 900, 720]), np.array([900.0, 720, 504]))
    got = figures(counted)
    np.testing.assert_allclose(got["rate"], [0.9, 0.8, 0.7])
    np.testing.assert_allclose(got["tokens_per_pass"], 3.124)
    np.testing.assert_allclose(got["overlap"], [0.95, 0.85, 0.6])
    assert got["roots"] == 1000


def case(seed):
    """(logits, rows, p of all tokens): two texts and padding in a row, gaps in the mask."""
    rng = np.random.default_rng(seed)
    segment = np.array([[1] * 6 + [2] * 5 + [0], [1] * 12], np.int32)
    mask = rng.random(segment.shape) < 0.85
    made = jnp.asarray(2 * rng.normal(size=(*segment.shape, V)), jnp.float32)
    rows = Batch(rng.integers(0, V, segment.shape).astype(np.int32), mask, segment, positions(jnp.asarray(segment)))
    near = lambda: np.asarray(made[..., ID_U]) + rng.normal(size=(*segment.shape, len(ID_U))).astype(np.float32)
    return [(near(), np.asarray(rows.position_BT) >= place) for place in range(K)], rows, made


def in_words(overlap_KBT, valid_KBT, rows):
    """(overlap, rate, roots), root by root."""
    total, reached, kept = np.zeros(K), np.zeros(K), np.zeros(K)
    B, T = rows.token_BT.shape
    counts = lambda b, t: t + 1 < T and rows.segment_BT[b, t] == rows.segment_BT[b, t + 1] != 0 and rows.mask_BT[b, t + 1]
    number = np.zeros(K)
    for b, t in np.ndindex(B, T):
        for j in range(K):
            if counts(b, t) and valid_KBT[j][b, t]:
                total[j], number[j] = total[j] + overlap_KBT[j][b, t], number[j] + 1
        reach = 1.0
        for j in range(K):
            if not (counts(b, t + j) and valid_KBT[j][b, t + j]):
                break
            reached[j] += reach
            reach *= overlap_KBT[j][b, t + j]
            kept[j] += reach
    return total / number, kept / reached, reached[0]


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


@pytest.mark.parametrize("temperature", [None, 1])
@pytest.mark.parametrize("m", [None, 3])
def test_a_tally_is_what_a_count_root_by_root_gives(temperature, m):
    logits, rows, made = case(0)
    p = softmax(np.asarray(made, np.float64))
    kept = p if m is None else np.where(p >= np.sort(p)[..., -m, None], p, 0)
    q_K = [softmax(np.asarray(x, np.float64)) for x, _ in logits]
    if temperature:
        overlap = [np.minimum(kept[..., ID_U], q).sum(-1) for q in q_K]
        np.testing.assert_allclose(overlap[0][0, 0], acceptance.overlap(kept[0, 0, ID_U], q_K[0][0, 0]))
    else:
        overlap = [(ID_U[q.argmax(-1)] == p.argmax(-1)).astype(float) for q in q_K]
    want = in_words(overlap, [valid for _, valid in logits], rows)
    law = targets.full(made) if m is None else targets.top(made, m)
    counted = run(logits, rows._replace(law=law), temperature=temperature, place_V=PLACE)
    got = figures(counted)
    np.testing.assert_allclose(got["overlap"], want[0], rtol=1e-5)
    np.testing.assert_allclose(got["rate"], want[1], rtol=1e-5)
    assert got["roots"] == want[2] and min(got["rate"]) > 0 and max(got["rate"]) < 1


def test_batches_add_up_and_empty_ones_add_nothing():
    logits, rows, made = case(1)
    rows = rows._replace(law=targets.full(made))
    one = run(logits, rows, temperature=1, place_V=PLACE)
    nothing = run([(x * np.nan, valid) for x, valid in logits], rows._replace(mask_BT=rows.mask_BT & False), temperature=1, place_V=PLACE)
    twice = add([one, nothing, one])
    assert twice.rows_K.dtype == np.float64
    np.testing.assert_allclose(twice.kept_K, 2 * np.asarray(one.kept_K))
    assert figures(twice)["roots"] == 2 * figures(one)["roots"]
    with pytest.raises(ValueError, match="no held-out row has a token to be learnt"):
        figures(add([nothing]))


def test_a_temperature_that_laws_are_not_kept_at_is_refused():
    logits, rows, made = case(2)
    with pytest.raises(ValueError, match=r"evaluate.temperature=0.7 must be 0 or 1"):
        tally(logits, rows._replace(law=targets.full(made)), 0.7)
    with pytest.raises(ValueError, match="needs the target's laws, and the rows hold none"):
        tally(logits, rows, 1)


def test_rates_on_the_loops_own_text_are_those_of_the_loop():
    target = loop.random_lm(3)
    draft = loop.mixed(target, 4, share=0.3)
    decoder = specjax.Decoder(target, drafter=loop.drafter(draft, most=K), ladder=(K + 1,))
    rows, prompt = 40, [1, 2, 3]

    def generate(prompts, budgets):
        return decoder.output(decoder.generate(decoder.prefill(decoder.start(prompts, budgets, most=rows))))

    said = generate([prompt] * rows, [rows] + [0] * (rows - 1)).token_ids[0]
    text = np.array([*prompt, *said], np.int32)
    roots = np.arange(rows) + len(prompt) - 1  # each of them the root of a first round, with as many drafts as there is text
    drafts = np.minimum(K, len(text) - 1 - roots)
    first = generate([text[: t + 1].tolist() for t in roots], (drafts + 1).tolist()).trace
    np.testing.assert_array_equal(first.drafted_BN[:, 0], drafts)
    _, want = latency.rates_from_rounds(first.drafted_BN[:, 0], first.stop_BN[:, 0], K)

    index = np.arange(len(text), dtype=np.int32)[None]
    batch = Batch(text[None], index >= len(prompt), np.ones_like(index), index)
    hidden, _, _ = draft.model.forward(draft.params, text[None], draft.model.init_cache(1, len(text)), jnp.zeros(1, jnp.int32))
    places = [(draft.model.head(draft.params, hidden), index >= 0)] * K  # a language model's laws are the same at every place
    got = figures(run(places, batch, temperature=0))
    assert got["roots"] == rows and 0.2 < got["rate"][0] < 0.95
    np.testing.assert_allclose(got["rate"], want, rtol=1e-6)
    np.testing.assert_allclose(got["tokens_per_pass"], latency.expected_tokens_from_rates(want), rtol=1e-6)
