import dataclasses
import gzip

import pytest
import tiny_run

from specjax import decode
from specjax.bench import look


@pytest.fixture
def two_arms():
    whole = tiny_run.experiment()
    return dataclasses.replace(whole, arms=tuple(arm for arm in whole.arms if arm.name in ("match", "one")))


def test_arms_of_one_structure_share_their_programs():
    found = [(program.phase, program.arms) for program in look.programs(tiny_run.experiment())]
    assert found[:2] == [("prefill", ["plain greedy", "plain t=0.7"]), ("decode", ["plain greedy"])]
    assert ("decode", ["match", "one"]) in found and ("prefill", ["match", "one", "coupled", "p/q"]) in found
    assert len(found) == 3 + 6


def test_the_text_of_each_program_is_written(two_arms, tmp_path):
    paths = look.dump_hlo(two_arms, tmp_path / "hlo")
    assert [path.name for path in paths] == ["prefill.match.txt", "decode.match.txt"]
    text = paths[1].read_text()
    assert text.startswith("// decode of match, one\nHloModule") and "while(" in text


def test_the_profile_holds_one_batch_of_each_arm_and_compiles_nothing(two_arms, tmp_path):
    look.profile(two_arms, tmp_path / "first")
    before = decode.generate._cache_size()
    path = look.profile(two_arms, tmp_path / "profile")
    trace = gzip.decompress(path.read_bytes()).decode()
    assert '"match"' in trace and '"one"' in trace
    assert decode.generate._cache_size() == before
