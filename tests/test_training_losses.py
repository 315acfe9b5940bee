"""Every loss against exact values, finite differences and its definition in NumPy; and the loss of a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import losses, targets
from specjax.training.losses import Weighted, mean, total
from specjax.training.rows import Batch, positions
from specjax.training.targets import TargetLaw

# from exact enumeration
CASES = {
    "A": ((0.5, 0.3, 0.15, 0.05), (0.4, 0.4, 0.1, 0.1)),
    "B": ((0.3, 0.5, 0.2), (0.6, 0.3, 0.1)),
}
VALUES = {
    "A": {
        "ce": -np.log(0.4), "forward_kl": 0.0514295611, "reverse_kl": 0.0545836157, "jsd": 0.0131316134, "tvd": 0.15,
        "nla": 0.1625189295, "lk": 0.1423034559, "ce_l1": 0.1 * -np.log(0.4) + 0.9 * 0.3,
    },
    "B": {
        "ce": -np.log(0.6), "forward_kl": 0.1860980938, "reverse_kl": 0.1933259032, "jsd": 0.0466133843, "tvd": 0.3,
        "nla": 0.3566749439, "lk": 0.2860519794, "ce_l1": 0.1 * -np.log(0.6) + 0.9 * 0.6,
    },
}  # fmt: skip
TVD_GRADIENT = {"A": [-0.2, 0.2, -0.05, 0.05], "B": [0.24, -0.18, -0.06]}
ALL = {**{loss.name: loss() for loss in losses.ALL}, "jsd .2": losses.JSD(beta=0.2), "lk 1": losses.LK(eta=1.0)}
ALL["weighted"] = Weighted(((0.5, losses.CE()), (2.0, losses.ReverseKL())))
DIVERGENCES = [name for name in ALL if name not in ("ce", "ce_l1", "weighted")]
X, U = 6, 7  # of all laws here, so that all share two programs: one for whole laws, one for those that name tokens


@jax.jit
def run(logits, law, token):
    """{name: (value, gradient)} of every loss."""

    def both(loss):
        loss_X, pull = jax.vjp(lambda logits: loss(logits, law, token), logits)
        return loss_X, pull(jnp.ones_like(loss_X))[0]

    return {name: both(loss) for name, loss in ALL.items()}


def whole(p, rest=0.0):
    return TargetLaw((1 - rest) * p, None, np.full(X, rest, p.dtype))


def likeliest(p, m, cannot_say=0):
    """The m likeliest tokens, of which the draft cannot say the first few."""
    id_XN = np.argsort(-p, axis=-1, kind="stable").astype(np.int32)
    named = np.where(np.arange(U) < m, np.take_along_axis(p, id_XN, -1), 0)
    id_XN[:, m:] = id_XN[:, :cannot_say] = U
    rest = np.where(m < U, np.maximum(1 - named.sum(-1), 0), 0).astype(p.dtype)
    lost = named[:, :cannot_say].sum(-1)
    named[:, :cannot_say] = 0
    return TargetLaw(named, id_XN, rest, lost if cannot_say else None)


def laws(p):
    """Of each form."""
    return [whole(p), whole(p, rest=0.3), likeliest(p, 3), likeliest(p, 4, cannot_say=1), likeliest(p, U)]


def random(seed, dtype=np.float64):
    """(logits, p, token), some of p small, one token that the draft cannot say."""
    rng = np.random.default_rng(seed)
    token = rng.integers(0, U, X).astype(np.int32)
    token[0] = U
    return (2 * rng.normal(size=(X, U))).astype(dtype), rng.dirichlet([0.5] * U, X).astype(dtype), token


@pytest.fixture(scope="module")
def reference():
    """{case: what every loss gives, for a whole law and for one that names all}, tokens that a case has not made impossible."""
    given = {}
    with jax.enable_x64(True):
        for name, (p, q) in CASES.items():
            laws_XU = np.zeros((2, X, U))
            laws_XU[:, :, : len(p)] = np.array([p, q])[:, None]
            logits = np.log(np.maximum(laws_XU[1], 1e-300)) + 2
            for law in (whole(laws_XU[0]), likeliest(laws_XU[0], U), likeliest(laws_XU[0], len(p))):
                given.setdefault(name, []).append(run(logits, law, np.zeros(X, np.int32)))
    return given


@pytest.mark.parametrize("name", [loss.name for loss in losses.ALL])
@pytest.mark.parametrize("which", CASES)
def test_values_of_the_reference(reference, name, which):
    for got in reference[which]:
        np.testing.assert_allclose(got[name][0], VALUES[which][name], atol=1e-9)


@pytest.mark.parametrize("which", CASES)
def test_gradient_of_the_total_variation(reference, which):
    want = np.pad(TVD_GRADIENT[which], (0, U - len(TVD_GRADIENT[which])))
    for got in reference[which]:
        np.testing.assert_allclose(got["tvd"][1], np.broadcast_to(want, (X, U)), atol=1e-9)


def merged(logits, law):
    """(p, q) over the N + 2 outcomes, in NumPy."""
    q = np.exp(logits - logits.max(-1, keepdims=True))
    q = q / q.sum(-1, keepdims=True)
    id_XN = np.broadcast_to(np.arange(U), (X, U)) if law.id_XN is None else law.id_XN
    named = np.where(id_XN < U, np.take_along_axis(q, id_XN % U, -1), 0)
    others = np.array([q[x, sorted(set(range(U)) - set(id_XN[x]))].sum() for x in range(X)])[:, None]
    lost = np.zeros((X, 1)) if law.lost_X is None else law.lost_X[:, None]
    return np.concatenate([law.p_XN, law.rest_X[:, None], lost], -1), np.concatenate([named, others, np.zeros((X, 1))], -1)


@pytest.mark.parametrize("make", [targets.full, lambda logits: targets.top(logits, 2)])
def test_a_draft_that_cannot_do_better_is_not_pulled(make):
    """It cannot say the likeliest token, and q is p over all others: forward KL and its gradient are 0."""
    p, said = np.array([0.9, 0.04, 0.03, 0.02, 0.01]), np.arange(1, 5, dtype=np.int32)
    with jax.enable_x64(True):
        law = targets.reduced(make(jnp.log(p)), targets.place_of(said, 5), 4)
        loss, pull = jax.value_and_grad(lambda logits: losses.ForwardKL()(logits, law, jnp.int32(0)))(jnp.log(p[said]))
        np.testing.assert_allclose([float(loss), *pull], 0, atol=1e-12)


def kl(a, b):
    return np.where(a > 0, a * np.log(np.where(a > 0, a, 1) / np.where(a > 0, b, 1)), 0).sum(-1)


def by_definition(name, p, q):
    tv = np.abs(p - q).sum(-1) / 2
    sayable = np.where(q > 0, p, 0)
    forward = kl(sayable, q) - sayable.sum(-1) * np.log(sayable.sum(-1))
    if name in ("forward_kl", "tvd", "nla"):
        return {"forward_kl": forward, "tvd": tv, "nla": -np.log(1 - tv)}[name]
    if name == "reverse_kl":
        return kl(q, np.where(p > 0, p, np.finfo(np.float32).tiny))
    if name.startswith("lk"):
        lam = np.exp(-ALL[name].eta * (1 - tv))
        return lam * forward + (1 - lam) * tv
    beta = ALL[name].beta
    m = beta * p + (1 - beta) * q
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def test_values_over_merged_outcomes_are_those_of_the_definition():
    with jax.enable_x64(True):
        logits, p, token = random(0)
        for law in laws(p):
            got = run(logits, law, token)
            for name in DIVERGENCES:
                np.testing.assert_allclose(got[name][0], by_definition(name, *merged(logits, law)), rtol=1e-6, atol=1e-12, err_msg=name)


def test_gradients_are_finite_differences():
    with jax.enable_x64(True):
        logits, p, token = random(1)
        for law in laws(p):
            got = run(logits, law, token)

            def values(logits, law=law, got=got):
                now = {name: np.asarray(loss_X) for name, (loss_X, _) in run(logits, law, token).items()}
                for name in ("lk", "lk 1"):  # no gradient passes through lam, so it stays as it is
                    lam = np.exp(-ALL[name].eta * (1 - np.asarray(got["tvd"][0])))
                    now[name] = lam * now["forward_kl"] + (1 - lam) * now["tvd"]
                return now

            for u in range(U):  # places are independent: all at once
                up, down = (values(logits + step * np.eye(U)[u]) for step in (1e-6, -1e-6))
                for name in ALL:
                    np.testing.assert_allclose(got[name][1][:, u], (up[name] - down[name]) / 2e-6, atol=1e-7, err_msg=name)


def test_ce_is_zero_where_the_draft_cannot_say_the_token():
    logits, p, token = random(2, np.float32)
    loss_X, gradient = run(logits, whole(p), token)["ce"]
    assert loss_X[0] == 0 and not gradient[0].any()
    assert (loss_X[1:] > 0).all() and gradient[1:].all()


def test_merging_outcomes_never_raises_a_divergence():
    for seed in range(20):
        logits, p, token = random(seed, np.float32)
        exact, bound = run(logits, whole(p), token), run(logits, likeliest(p, 3), token)
        for name in ("forward_kl", "reverse_kl", "jsd", "tvd", "nla"):
            assert (bound[name][0] <= exact[name][0] + 1e-6).all(), name
            assert (bound[name][0] < 0.97 * exact[name][0]).any(), name


def test_divergences_vanish_where_the_laws_are_equal():
    logits, _, token = random(4, np.float32)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for law in (whole(p), likeliest(p, 3)):
        got = run(logits, law, token)
        for name in DIVERGENCES:
            np.testing.assert_allclose(got[name][0], 0, atol=1e-6)
        for name in ("forward_kl", "reverse_kl", "jsd"):  # the others have a kink there
            np.testing.assert_allclose(got[name][1], 0, atol=1e-6)


def test_values_and_gradients_are_finite_at_the_ends():
    p, logits = np.zeros((X, U), np.float32), np.zeros((X, U), np.float32)
    p[:, :4] = [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1], [0.25] * 4, [0] * 4, [1e-40, 1, 0, 0]]
    logits[:, :4] = [[0, -200, 300, 0], [9e4, 0, -9e4, 0], [0, 0, 0, -1e30], [-np.inf, 0, 0, 0], [1, 2, 3, 4], [88, -88, 0, 0]]
    logits[3, 4:] = -np.inf  # all that the four likeliest leave
    token = np.array([0, 2, 3, 1, U, 1], np.int32)
    merged = [likeliest(p, 2), likeliest(p, 3, cannot_say=2), likeliest(p, 0), likeliest(p, 4), likeliest(p, U)]
    for law in (TargetLaw(p, None, 1 - p.sum(-1)), *merged):
        for name, (loss_X, gradient) in run(logits, law, token).items():
            assert np.isfinite(loss_X).all() and (np.asarray(loss_X) >= -1e-6).all() and np.isfinite(gradient).all(), name


def test_a_hopeless_draft_is_still_pulled_but_by_total_variation():
    p, logits = np.zeros((X, U), np.float32), np.zeros((X, U), np.float32)
    p[:, 0], logits[:, 0] = 1, -200
    for law in (whole(p), likeliest(p, 1)):
        got = run(logits, law, np.zeros(X, np.int32))
        for name in ("forward_kl", "nla", "lk"):
            np.testing.assert_allclose(got[name][1][:, 0], -1, atol=1e-6)
        np.testing.assert_allclose(got["tvd"][1], 0, atol=1e-7)


def test_bfloat16_logits_are_computed_in_float32():
    logits, p, token = random(5, np.float32)
    rough = jnp.asarray(logits, jnp.bfloat16)
    loss_X, pull = jax.vjp(jax.jit(lambda logits: losses.ForwardKL()(logits, likeliest(p, 3), token)), rough)
    assert loss_X.dtype == jnp.float32 and pull(loss_X)[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(loss_X, run(rough.astype(jnp.float32), likeliest(p, 3), token)["forward_kl"][0], rtol=1e-5)


def test_losses_have_papers_and_ranges():
    assert all(loss.paper and loss.equation for loss in losses.ALL)
    for message, make in {
        "loss.beta=1 must be above 0 and below 1": lambda: losses.JSD(beta=1),
        "loss.eta=-1 must be at least 0": lambda: losses.LK(eta=-1),
        "loss.l1=-2 must be at least 0": lambda: losses.CEL1(l1=-2),
        "must have at least one part": lambda: Weighted(()),
        "weight=0 of ce must be above 0": lambda: Weighted(((0, losses.CE()),)),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()


# ---------------------------------------------------------------- of a batch

B, T, V, PLACES = 2, 8, 9, 2
ID_U = np.array([0, 2, 3, 5, 6, 7, 8], np.int32)  # the draft's tokens
PLACE = targets.place_of(ID_U, V)
LOSS = Weighted(((0.3, losses.CE()), (0.7, losses.ForwardKL())))


def batch():
    """Two rows: two texts and padding; a text without a true mask and one with."""
    rng = np.random.default_rng(6)
    segment = np.array([[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 2, 2, 2, 2, 2]], np.int32)
    mask = np.array([[0, 1, 1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0, 1]], bool)
    law = jax.tree.map(np.asarray, targets.top(jnp.asarray(rng.normal(size=(B, T, V)), jnp.float32), 4))
    token = rng.integers(0, V, (B, T)).astype(np.int32)
    rows = Batch(token, mask, segment, np.asarray(positions(jnp.asarray(segment))), (), law)
    made = [(rng.normal(size=(B, T, len(ID_U))).astype(np.float32), rows.position_BT >= place) for place in range(PLACES)]
    return rows, made


def counted(rows, valid_BT):
    """By the convention, in words."""
    return [
        (b, t)
        for b, t in np.ndindex(rows.token_BT[:, :-1].shape)
        if rows.segment_BT[b, t] == rows.segment_BT[b, t + 1] != 0 and rows.mask_BT[b, t + 1] and valid_BT[b, t]
    ]


@functools.partial(jax.jit, static_argnames=("loss", "decay"))
def summed_and_gradient(logits, valid, rows, loss=LOSS, decay=0.5):
    def summed(logits):
        return total(list(zip(logits, valid, strict=True)), rows, loss, decay=decay, place_V=PLACE)

    (value, number), gradient = jax.value_and_grad(summed, has_aux=True)(logits)
    return value, number, gradient


def test_a_batchs_loss_is_the_sum_over_the_rows_that_count_with_the_places_weights():
    rows, made = batch()
    logits, valid = zip(*made, strict=True)
    value, number, _ = summed_and_gradient(logits, valid, rows)
    law = jax.tree.map(np.asarray, targets.reduced(jax.tree.map(jnp.asarray, rows.law), PLACE, len(ID_U)))
    rows_of = [counted(rows, valid_BT) for valid_BT in valid]
    loss = jax.jit(LOSS)
    each = [np.asarray(loss(logits_BTU, law, PLACE[np.roll(rows.token_BT, -1, 1)])) for logits_BTU in logits]
    want = sum(0.5**place * each[place][at] for place in range(PLACES) for at in rows_of[place])
    assert [len(where) for where in rows_of] == [7, 5]
    assert float(number) == 7 + 0.5 * 5
    np.testing.assert_allclose(value, want, rtol=1e-6)


def test_places_that_share_an_array_are_as_if_each_had_its_own():
    rows, made = batch()
    logits, valid = zip(*made, strict=True)
    apart = summed_and_gradient((logits[0], logits[0]), valid, rows)
    shared = jax.jit(jax.value_and_grad(lambda x: total([(x, v) for v in valid], rows, LOSS, decay=0.5, place_V=PLACE), has_aux=True))
    (value, number), gradient = shared(logits[0])
    np.testing.assert_allclose(value, apart[0], rtol=1e-6)
    assert number == apart[1]
    np.testing.assert_allclose(gradient, apart[2][0] + apart[2][1], atol=1e-6)


def test_the_gradient_is_non_zero_exactly_where_a_row_counts():
    rows, made = batch()
    logits, valid = zip(*made, strict=True)
    _, _, gradient = summed_and_gradient(logits, valid, rows)
    for place in range(PLACES):
        moved = {(b, t) for b, t in np.ndindex(B, T) if gradient[place][b, t].any()}
        assert moved == set(counted(rows, valid[place]))


def test_rows_that_do_not_count_may_hold_anything():
    rows, made = batch()
    logits, valid = zip(*made, strict=True)
    spoilt = [logit.copy() for logit in logits]
    p_BTN = rows.law.p_XN.copy()
    for place in reversed(range(PLACES)):
        dead = np.ones((B, T), bool)
        dead[tuple(zip(*counted(rows, valid[place]), strict=True))] = False
        spoilt[place][dead] = np.nan
    p_BTN[dead] = np.nan  # where place 0 does not count none does
    got = summed_and_gradient(tuple(spoilt), valid, rows._replace(law=rows.law._replace(p_XN=p_BTN)))
    for new, old in zip(jax.tree.leaves(got), jax.tree.leaves(summed_and_gradient(logits, valid, rows)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_doubling_the_padding_changes_nothing():
    rows, made = batch()
    logits, valid = zip(*made, strict=True)
    wide = lambda x: np.pad(x, [(0, B), (0, T), *[(0, 0)] * (x.ndim - 2)], constant_values=x.dtype.type(1))
    more = jax.tree.map(wide, rows)._replace(segment_BT=np.pad(rows.segment_BT, [(0, B), (0, T)]))
    value, number, gradient = summed_and_gradient(tuple(map(wide, logits)), tuple(map(wide, valid)), more)
    old_value, old_number, old = summed_and_gradient(logits, valid, rows)
    np.testing.assert_allclose(value, old_value, rtol=1e-6)
    assert number == old_number
    for place in range(PLACES):
        np.testing.assert_allclose(gradient[place][:B, :T], old[place], atol=1e-7)
        assert not gradient[place][B:].any() and not gradient[place][:, T:].any()


def test_a_batch_without_a_mask_adds_nothing_and_divides_by_nothing():
    rows, made = batch()
    logits, valid = zip(*made, strict=True)
    value, number, gradient = summed_and_gradient(logits, valid, rows._replace(mask_BT=np.zeros((B, T), bool)))
    assert value == number == 0 and mean(value, number) == 0
    assert not any(g.any() for g in gradient)
    assert float(mean(jnp.float32(6), jnp.float32(4))) == 1.5
    assert jax.grad(mean)(jnp.float32(0), jnp.float32(0)) == 0


def test_a_loss_that_needs_laws_is_refused_without_and_ce_is_not():
    rows, made = batch()
    with pytest.raises(ValueError, match="loss 'tvd' needs the target's laws, and the rows hold none"):
        total(made, rows._replace(law=None), losses.TVD(), place_V=PLACE)
    logits, valid = zip(*made, strict=True)
    value, _, _ = summed_and_gradient(logits, valid, rows._replace(law=None), loss=losses.CE())
    np.testing.assert_allclose(value, summed_and_gradient(logits, valid, rows, loss=losses.CE())[0], rtol=1e-6)
