import dataclasses
import types

import jax.numpy as jnp
import pytest
import tiny_run
import tiny_talk

import specjax
from specjax import build
from specjax.bench import agree, line, sweep, turns
from specjax.bench.plan import Encoded, Task
from specjax.models.toy import ByteTokenizer
from specjax.prompts import Prompt

PROMPT = Prompt(7, "q", "c", ("ab", "cd", "e"))
ARM = types.SimpleNamespace(name="arm")


class Chat(ByteTokenizer):
    """Its template marks who speaks, and refuses an answer that shouts."""

    has_template = True

    def chat(self, messages):
        if any("!" in m["content"] for m in messages):
            raise ValueError("the chat template refused the messages: shouting")
        return self.encode("".join(f"<{m['role'][0]}>{m['content']}" for m in messages))


def asked(answers, chat=False, max_new_tokens=3):
    """The text of the turn after these answers."""
    target = types.SimpleNamespace(tokenizer=Chat(), source="chat")
    plan = types.SimpleNamespace(max_new_tokens=max_new_tokens, prompts=types.SimpleNamespace(chat=chat))
    task = Task(ARM, turns.encode(target, PROMPT, chat), turn=len(answers))
    said = {task._replace(turn=i).key: answer for i, answer in enumerate(answers)}
    return bytes(turns.prompt_tokens(types.SimpleNamespace(target=target, plan=plan), task, said)).decode()


def test_an_answer_goes_into_the_next_turn():
    assert [asked(a) for a in ([], ["xy"], ["xy", ""])] == ["ab", "abxy\ncd", "abxy\ncd\ne"]
    assert asked(["xy", "z"], chat=True) == "<u>ab<a>xy<u>cd<a>z<u>e"


def test_an_answer_that_takes_more_tokens_than_were_reserved_loses_its_end():
    half = "\ufffd"  # a byte that is no text is decoded to three
    assert asked([half + "z"]) == f"ab{half}\ncd"
    assert asked([half + "z", "uvwxyz"]) == f"ab{half}\ncduvw\ne"  # what was cut once stays cut
    assert asked(["x", "uvwxyz"]) == "abx\ncduvwxy\ne"  # what an answer left over serves the next


def test_what_a_template_refuses_is_named():
    target = types.SimpleNamespace(tokenizer=Chat(), source="chat")
    with pytest.raises(ValueError, match=r"^prompt 'q': the chat template refused the messages: shouting$"):
        turns.encode(target, PROMPT._replace(turns=("a", "b!")), True)
    with pytest.raises(RuntimeError, match=r"^prompt 'q': the chat template refused the messages: shouting$"):
        asked(["no!"], chat=True)
    with pytest.raises(ValueError, match="prompt 'q' has no tokens"):
        turns.encode(target, PROMPT._replace(turns=("",)), False)


def test_a_conversation_that_does_not_fit_is_refused_before_anything_is_decoded():
    config = {**build.plain(tiny_talk.get_config()), "max_new_tokens": 336}
    # "abababab", "\nand abab" and "\nab?" are 21 tokens: 21 + 3 * 336 = 1029
    with pytest.raises(
        ValueError, match="prompt 'a': 21 tokens \\+ max_new_tokens=336 in each of 3 turns exceed the model's 1024 positions"
    ):
        build.load(build.plan(config))
    assert build.load(build.plan({**config, "max_new_tokens": 334})).size == 1024 + 128  # and the widest rung


def test_a_record_for_each_turn_and_sample():
    records = tiny_talk.timeless(tiny_talk.finished())
    sizes = {e.prompt.question_id: len(e.prompt.turns) for e in tiny_talk.experiment().prompts}
    want = {
        (arm, name, sample, 0, turn)
        for arm, samples in {"plain greedy": 1, "match": 1, "plain t=2": 2, "p/q": 2}.items()
        for name, count in sizes.items()
        for sample in range(samples)
        for turn in range(count)
    }
    assert set(records) == want and len(want) == 11 * 6
    one, two = (records["p/q", "b", sample, 0, 0]["token_ids"] for sample in (0, 1))
    assert one != two
    sampled = {(r["question_id"], r["sample"], r["turn"]): r["prompt_id"] for r in records.values()}
    assert len(set(sampled.values())) == len(sampled) == 22  # no draw serves twice
    assert records["p/q", "a", 0, 0, 0]["prompt_id"] == tiny_talk.experiment().prompts[0].prompt.id


def test_each_turn_is_what_its_prompt_alone_would_give():
    experiment, records = tiny_talk.experiment(), tiny_talk.timeless(tiny_talk.finished())
    answers = {key: r["text"] for key, r in records.items()}
    for name in ("match", "p/q"):
        arm = next(a for a in experiment.arms if a.name == name)
        task = Task(arm, experiment.prompts[0], sample=len(experiment.samples(arm)) - 1, turn=2)
        tokens = turns.prompt_tokens(experiment, task, answers)
        assert tokens[: len("abababab")] == list(b"abababab") and tokens[-4:] == list(b"\nab?")
        decoder = arm.decoder
        output = decoder.output(decoder.generate(decoder.prefill(decoder.start([tokens] * 3, [6, 0, 0], [task.id] * 3))))
        record = records[task.key]
        assert (record["token_ids"], record["prompt_tokens"]) == (output.token_ids[0], len(tokens))
        assert record["logprobs"] == pytest.approx(output.logprobs[0], abs=1e-5) and len(record["logprobs"]) == len(output.token_ids[0])


def test_only_the_first_turn_that_differs_is_judged():
    rows = [dict(r) for r in tiny_talk.finished().records()]
    experiment = tiny_talk.experiment()
    agreements, differences = agree.compare(experiment, rows)
    assert agreements == {"match": agree.Agreement(11, 0, 0, 0)} and differences == []
    row = next(r for r in rows if line.key(r) == ("match", "a", 0, 0, 1))
    prompt = turns.prompt_tokens(experiment, task_of(experiment, row), {line.key(r): r["text"] for r in rows})
    cache = experiment.target.model.init_cache(1, len(prompt), jnp.float32)
    hidden, _, _ = experiment.target.model.forward(experiment.target.params, jnp.asarray([prompt]), cache, jnp.zeros(1, jnp.int32))
    logits = experiment.target.model.head(experiment.target.params, hidden)[0, -1]
    first = row["token_ids"][0]
    row["token_ids"] = [int(jnp.argmin(logits)), *row["token_ids"][1:]]
    agreements, [difference] = agree.compare(experiment, rows)
    assert agreements["match"] == agree.Agreement(9, 0, 1, 1)  # turn 0 is equal, turn 1 a bug, turn 2 followed
    assert difference[:7] == ("match", "a", 0, 0, 1, 0, (first, row["token_ids"][0]))
    assert difference.gap == pytest.approx(float(logits.max() - logits.min()), abs=1e-3)


def task_of(experiment, row):
    arm = next(a for a in experiment.arms if a.name == row["arm"])
    encoded = next(e for e in experiment.prompts if e.prompt.question_id == row["question_id"])
    return Task(arm, encoded, row["sample"], row["repeat"], row["turn"])


def test_a_later_turn_is_part_of_the_fingerprint():
    experiment = tiny_talk.experiment()
    first, *rest = experiment.prompts
    changed = dataclasses.replace(experiment, prompts=(first._replace(later=(first.later[0], [1, 2, 3])), *rest))
    assert changed.fingerprint != experiment.fingerprint


def test_a_run_goes_on_in_the_middle_of_a_conversation(tmp_path):
    from specjax.bench.records import Workdir

    whole = tiny_talk.finished()
    lines = (whole.path / "records.jsonl").read_text().splitlines(keepends=True)
    workdir = Workdir(tmp_path)
    workdir.create({})
    (tmp_path / "records.jsonl").write_text("".join(lines[:13]))  # the first batch has had one turn and a part of the second
    for r in workdir.records():
        (tmp_path / r["trace"]).write_bytes((whole.path / r["trace"]).read_bytes())
    sweep.run(tiny_talk.experiment(), workdir)
    assert tiny_talk.timeless(workdir) == tiny_talk.timeless(whole)
    assert (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)[:13] == lines[:13]


def test_tasks_that_would_share_their_draws_are_refused(monkeypatch):
    monkeypatch.setattr(Task, "id", property(lambda task: task.encoded.prompt.id % 2))
    with pytest.raises(ValueError, match="would share their draws: give one of them another question_id"):
        build.load(build.plan(tiny_run.get_config()))


def test_one_turn_is_encoded_as_the_interface_does():
    target = tiny_talk.experiment().target
    assert turns.encode(target, PROMPT._replace(turns=("ab",)), False) == Encoded(PROMPT._replace(turns=("ab",)), list(b"ab"))
    assert specjax.api.encode(target, ["ab"]) == [list(b"ab")]
