import dataclasses
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_eagle
import tiny_laws

import specjax
from specjax import build, certify, rules, sampling, shapes
from specjax.bench import alike, laws, loading
from specjax.bench.judged import Drafts, Way, judges, label, see
from specjax.bench.records import Workdir
from specjax.lengths import Confidence, Fixed
from specjax.models import toy


@pytest.fixture(autouse=True, scope="module")
def _few_rules():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike, "usual", tiny_laws.usual)
        yield


def folder(tmp_path) -> Workdir:
    """A copy of the recorded run that may be broken."""
    shutil.copytree(tiny_laws.recorded().path, tmp_path / "run")
    return Workdir(tmp_path / "run")


# ---------------------------------------------------------------- one rule on one draft


def every(shape, p_V, q_V):
    """(Drafts, probability of each): all i.i.d. drafts of a shape where p and q are the same at every place."""
    tokens = np.asarray(list(itertools.product(range(len(p_V)), repeat=shape.nodes - 1)))
    count = len(tokens)
    rows = [np.tile(x, (count, 1)) for x in (shape.parent_M, shape.depth_M, shape.rank_M, np.ones(shape.nodes, bool))]
    token_NM = np.pad(tokens, ((0, 0), (1, 0))).astype(np.int32)
    laws_NMV = [np.tile(np.asarray(law, np.float32), (count, shape.nodes, 1)) for law in (p_V, q_V)]
    return Drafts("iid", *rows, token_NM, *laws_NMV), np.prod(np.asarray(q_V)[tokens], axis=1)


def test_expected_tokens_are_those_of_the_exact_law():
    """Over every draft, weighed by its probability: case A of the reference values, whole and cut to two drafts."""
    p_V, q_V = (0.5, 0.3, 0.15, 0.05), (0.4, 0.4, 0.1, 0.1)
    drafts, weight_N = every(shapes.chain(3), p_V, q_V)
    both = rules.Speculative(), rules.Block()
    seen = see([*map(Way, both), *(Way(rule, Fixed(k=np.int32(2))) for rule in both)], drafts)
    tokens = [float(weight_N @ seen.way(i).tokens_N) for i in range(4)]
    assert tokens == pytest.approx([3.186625, 3.326375, 1 + 1.5725, 1 + 1.62], abs=1e-6)
    assert set(seen.drafted_WN[0]) == {3} and set(seen.drafted_WN[2]) == {2}
    assert float(weight_N @ seen.full_WN[0]) == pytest.approx(0.85**3, abs=1e-6)  # all accepted, one by one


def test_expected_tokens_on_a_tree_are_those_of_the_exact_law():
    p_V, q_V = (0.3, 0.5, 0.2), (0.6, 0.3, 0.1)
    drafts, weight_N = every(shapes.parse("2x1"), p_V, q_V)
    both = rules.RecursiveRejection(), rules.Traversal()
    seen = see([Way(rule) for rule in both], drafts)
    exact = [certify.exact_law(rule, p_V, q_V, 2, "2x1", drawn="iid").expected_tokens for rule in both]
    assert [float(weight_N @ seen.way(i).tokens_N) for i in range(2)] == pytest.approx(exact, abs=1e-6)
    assert exact[1] > exact[0]


def test_a_draft_that_is_certain_gains_nothing_from_block_verification():
    drafts, _ = every(shapes.chain(2), (0.5, 0.3, 0.15, 0.05), (0.4, 0.4, 0.1, 0.1))
    seen = see([Way(rules.Speculative()), Way(rules.Block())], drafts._replace(drawn="fixed", q_NMV=None))
    np.testing.assert_allclose(seen.reach_WNK[0], seen.reach_WNK[1], atol=1e-6)


def test_a_policy_without_a_state_cuts_where_it_would_have_stopped():
    drafts, _ = every(shapes.chain(2), (0.5, 0.5), (0.9, 0.1))
    drafts.q_NMV[:, 1] = 0.5
    seen = see([Way(rules.Speculative(), Confidence(threshold=x)) for x in (0.4, 0.6, 0.95)], drafts)
    assert [set(drafted) for drafted in seen.drafted_WN.tolist()] == [{2}, {1}, {0}]


def test_which_rules_judge_which_drafts():
    assert judges(rules.Block(), "iid", branches=False) and not judges(rules.Block(), "iid", branches=True)
    assert judges(rules.KSeq(), "iid", branches=True) and not judges(rules.KSeq(), "fixed", branches=True)
    assert not judges(rules.Greedy(), "fixed", branches=False)
    assert [label(x) for x in (rules.Lenient(lenience=0.5), rules.Block())] == ["lenient lenience=0.5", "block"]


# ---------------------------------------------------------------- the recording


def test_what_is_recorded_are_the_laws_at_every_third_place_of_plain_output():
    workdir, tables = tiny_laws.recorded(), tiny_laws.tables()
    said = {r["question_id"]: r["token_ids"] for r in workdir.records() if r["arm"] == "plain t=1"}
    model, ngram = laws.index(workdir)
    assert model["arms"] == ["p/q", "block 2", "up and down", "surely"] and ngram["arms"] == ["ngram"]
    assert (model["drawn"], model["certain"], ngram["drawn"], ngram["certain"]) == ("iid", False, "fixed", True)
    jobs = {job.file: job for job in laws.jobs(tiny_laws.ready(), workdir)}
    for question, file in model["files"].items():
        kept, job = laws.load_drafts(workdir.path / file), jobs[file]
        places = [place for place, _ in job.places]
        assert places == sorted([*range(job.encoded.prompt.id % 3, 12, 3)] * 2)
        text = [*job.encoded.tokens, *said[question]]
        roots = [text[len(job.encoded.tokens) + place - 1] for place in places]
        assert kept.token_NM[:, 0].tolist() == roots and kept.valid_NM.all()
        np.testing.assert_allclose(kept.p_NMV, tables["target"][kept.token_NM], atol=1e-6)
        np.testing.assert_allclose(kept.q_NMV[:, :-1], tables["draft"][kept.token_NM[:, :-1]], atol=1e-6)
        assert not kept.q_NMV[:, -1].any()  # nothing was drawn from it
        assert (kept.token_NM[::2] != kept.token_NM[1::2]).any()  # drafts of one root have coins of their own
    certain = laws.load_drafts(workdir.path / next(iter(ngram["files"].values())))
    assert certain.q_NMV is None and certain.p_NMV.shape[1] == 3
    assert not certain.valid_NM.all() and not certain.p_NMV[~certain.valid_NM].any() and not certain.token_NM[~certain.valid_NM].any()


def test_a_draft_that_reads_features_goes_back_to_a_place():
    """What it drafts at a place of a text that was read whole is what it drafts where the text ends."""
    decoder = specjax.Decoder(tiny_eagle.target(), drafter=tiny_eagle.drafter(), sampling=specjax.Sampling(temperature=1.0))
    text, where = [1, 2, 3, 1, 2, 4, 1, 2, 5, 3, 7], (jnp.asarray([6], jnp.int32), jnp.asarray([0], jnp.uint32))

    def drafted(read):
        state = decoder.prefill(decoder.start([text[:read]], 0, [0]))
        tree, arrays = laws.draft_at(decoder.setup, decoder.target.params, state, *where)
        return Drafts(tree.drawn, *arrays)

    back, fresh = drafted(len(text)), drafted(7)
    assert back.valid_NM.all() and back.token_NM[0, 0] == text[6]
    assert back.token_NM.tolist() == fresh.token_NM.tolist()
    np.testing.assert_allclose(back.q_NMV, fresh.q_NMV, atol=1e-6)
    np.testing.assert_allclose(back.p_NMV, fresh.p_NMV, atol=1e-6)


def test_the_ways_that_are_recorded():
    model, ngram = laws.index(tiny_laws.recorded())
    whole = ["speculative", "block", "lenient lenience=0.5"]
    assert [way["rule"] for way in model["ways"] if way["length"] is None] == whole
    arms = {(way["rule"], way["length"]): way["arms"] for way in model["ways"] if way["length"]}
    lengths = ["K=1", "K=2", "K=3"]
    assert [*arms] == [
        *(("speculative", k) for k in lengths),
        *(("block", k) for k in lengths),
        ("speculative", "confidence threshold=0.3"),
    ]
    assert {key: names for key, names in arms.items() if names} == {  # a policy that learns is none of them
        ("speculative", "K=3"): ["p/q"],
        ("block", "K=2"): ["block 2"],
        ("speculative", "confidence threshold=0.3"): ["surely"],
    }
    assert [way["exact"] for way in ngram["ways"][:3]] == [True, True, False]


def test_the_draws_are_no_draws_of_the_run():
    assert laws.PURPOSE not in (sampling.DRAFT, sampling.STOP, sampling.EMIT, sampling.NOISE)
    ready = tiny_laws.ready()
    [job, *_] = laws.jobs(ready, tiny_laws.decoded())
    _, own = laws.drafts(ready, job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laws, "PURPOSE", laws.PURPOSE + 1)
        _, others = laws.drafts(ready, job)
    assert (own.token_NM[:, 1:] != others.token_NM[:, 1:]).any() and (own.token_NM[:, 0] == others.token_NM[:, 0]).all()


def test_a_recording_that_was_stopped_goes_on_and_gives_the_same_files(tmp_path):
    workdir = folder(tmp_path)
    files = sorted((workdir.path / "laws").glob("*.npz"))
    before = {file.name: file.read_bytes() for file in files}
    notes = (workdir.path / "laws.json").read_bytes()
    (workdir.path / "laws.json").unlink()
    files[0].unlink()
    files[3].write_bytes(before[files[3].name][:-30])  # cut off in the middle

    def stopped(jobs):
        yield jobs[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        laws.record(tiny_laws.ready(), workdir, lambda line: None, stopped)
    with pytest.raises(ValueError, match="the laws of this run were not all recorded: the run's own command goes on"):
        laws.index(workdir)
    said = []
    laws.record(tiny_laws.ready(), workdir, said.append)
    assert {file.name: file.read_bytes() for file in sorted((workdir.path / "laws").glob("*.npz"))} == before
    assert (workdir.path / "laws.json").read_bytes() == notes
    assert said == [f"recording 64 drafts, the laws of 64 (at most 0 MB): {workdir.path / 'laws'}"]


def test_a_damaged_file_is_named(tmp_path):
    workdir = folder(tmp_path)
    first = workdir.path / next(iter(laws.index(workdir)[0]["files"].values()))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)
    for load in (laws.load_seen, laws.load_drafts):
        with pytest.raises(ValueError, match=r"npz is missing or damaged: delete it, and the run's own command records it again"):
            load(first) if load is laws.load_drafts else load(first.with_name("none.npz"))


def test_laws_are_kept_of_a_sample_that_is_spread_evenly():
    """A draft takes 2 laws of 257 numbers at 4 and at 3 nodes, so 1 MB holds 69 of both drafters: all; a tenth of it 6."""
    ready = tiny_laws.ready()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laws, "_kept", lambda experiment: 6)
        jobs = [job for job in laws.jobs(ready, tiny_laws.decoded()) if job.group.name == "p/q"]
    assert sum(len(job.places) for job in jobs) == 32 and [sum(job.whole) for job in jobs] == [2, 1, 2, 1]
    assert laws._kept(ready) == int(300e6 / (2 * (4 + 3) * 257 * 4))


def test_too_little_room_is_refused_before_anything_is_decoded(monkeypatch):
    laws.check(tiny_laws.ready())
    monkeypatch.setattr(alike.Group, "draft_bytes", 10**9)
    with pytest.raises(ValueError, match=r"record_laws.megabytes=300 does not hold one draft of each drafter: at least 2000"):
        laws.check(tiny_laws.ready())


def test_a_tree_is_recorded_whole():
    arm = dict(name="tree", drafter=dict(name="tree", source="draft", shape="2x1"), rule="traversal", sampling=tiny_laws.T1)
    ready = tiny_laws.experiment(arms=[arm], record_laws=dict(every=6))
    [job, *_] = laws.jobs(ready, tiny_laws.decoded())
    assert (job.group.base, job.group.branches, job.group.most) == ("recursive_rejection", True, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike, "usual", lambda: [rules.Speculative(), rules.RecursiveRejection()])
        assert [*job.group.ways("without_replacement")] == [
            *(("recursive_rejection", None), ("traversal", None)),
            *((rule, f"K={k}") for rule in ("recursive_rejection", "traversal") for k in (1, 2)),
        ]
        seen, kept = laws.drafts(ready, job)
    assert kept.drawn == "without_replacement" and kept.parent_NM[0].tolist() == [0, 0, 0, 1, 2] and kept.valid_NM.all()
    np.testing.assert_allclose(kept.p_NMV, tiny_laws.tables()["target"][kept.token_NM], atol=1e-6)
    np.testing.assert_allclose(kept.q_NMV[:, :3], tiny_laws.tables()["draft"][kept.token_NM[:, :3]], atol=1e-6)
    assert not kept.q_NMV[:, 3:].any() and (kept.token_NM[:, 1] != kept.token_NM[:, 2]).all()
    assert seen.drafted_WN[:, 0].tolist() == [4, 4, 2, 4, 2, 4]
    np.testing.assert_array_equal(seen.reach_WNK[1], seen.reach_WNK[5])
    assert (seen.reach_WNK[2][:, 1] == 0).all() and (seen.reach_WNK[0][:, :2] > 0).all()


# ---------------------------------------------------------------- the config


def test_the_config_of_a_recording():
    plan = lambda value, **more: build.plan(tiny_laws.CONFIG | {"record_laws": value} | more).record_laws
    assert plan(True) == laws_of() and plan(False) is plan(None) is None and plan({"every": 4}) == laws_of(every=4)
    for value, said in (
        ({"every": 0}, "record_laws.every=0 must be at least 1"),
        ({"evry": 2}, "record_laws.evry is not a key: .*; did you mean 'every'"),
        (3, "record_laws=3 must be a mapping of every, drafts, megabytes"),
    ):
        with pytest.raises(ValueError, match=said):
            plan(value)
    greedy = [dict(name="greedy", drafter="ngram", sampling=dict(temperature=0.0))]
    with pytest.raises(ValueError, match=r"config.record_laws changes nothing: no arm drafts at a temperature above 0"):
        plan(True, arms=greedy)


def laws_of(**numbers):
    from specjax.bench.plan import Laws

    return Laws(**numbers)


def test_a_worse_draft_has_noise_in_the_matrices_of_its_layers_only():
    lm = specjax.load("toy://tiny")
    uneven = jax.tree.map(lambda x: x + jnp.arange(x.size, dtype=x.dtype) if x.ndim == 1 else x, lm.params)  # norms, all ones
    lm = dataclasses.replace(lm, params=uneven)
    worse, again, other = (loading.noised(lm, 0.2, seed).params for seed in (0, 0, 1))
    assert loading.noised(lm, 0.0, 0) is lm
    moved = jax.tree.map(lambda new, old: np.asarray(new - old), worse, uneven)
    for name in ("embed_VD", "head_DV", "norm_D"):
        assert not moved[name].any()
    first, second = (moved["layers"][i] for i in "01")
    shares = []
    for name, old in uneven["layers"]["0"].items():
        assert first[name].any() == (old.ndim > 1), name
        if old.ndim > 1:
            assert first[name].std() == pytest.approx(0.2 * np.asarray(old).std(), rel=0.1)
            shares += [moved[name] / moved[name].std() for moved in (first, second)]
            np.testing.assert_array_equal(worse["layers"]["0"][name], again["layers"]["0"][name])
            assert not np.array_equal(worse["layers"]["0"][name], other["layers"]["0"][name])
    assert shares and all(abs(np.mean(a * b)) < 0.2 for a, b in zip(shares[::2], shares[1::2], strict=True))  # no noise twice


def test_noise_is_a_number_of_the_draft_model():
    arm = dict(name="a", drafter=dict(name="model", source="toy://tiny", noise=0.1), sampling=tiny_laws.T1)
    [_, planned] = build.plan(dict(target=dict(source="toy://tiny"), arms=[arm], prompts={})).arms
    assert planned.drafter.noise == 0.1
    with pytest.raises(ValueError, match=r"drafter.noise=-1 must be at least 0"):
        build.plan(dict(target=dict(source="toy://tiny"), arms=[arm | {"drafter": arm["drafter"] | {"noise": -1}}], prompts={}))


def test_arms_of_one_noise_share_their_weights():
    arms = [dict(name=n, drafter=dict(tiny_laws.DRAFT, noise=x), sampling=tiny_laws.T1) for n, x in (("a", 0.5), ("b", 0.5), ("c", 0.0))]
    made = {}

    def load_model(source, dtype, layout):
        model, params = toy.tiny(0)
        return made.setdefault(source, specjax.LM(model, {**params}, toy.ByteTokenizer(), source))

    experiment = build.load(build.plan(tiny_laws.CONFIG | dict(arms=arms)), load_model)
    a, b, c = (arm.decoder.setup.drafter.params["layers"]["0"] for arm in experiment.arms if not arm.plain)
    [name, *_] = [name for name, x in a.items() if jnp.ndim(x) > 1]
    np.testing.assert_array_equal(a[name], b[name])
    assert not np.array_equal(a[name], c[name])
