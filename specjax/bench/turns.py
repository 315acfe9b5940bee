"""Conversations: what an arm answered in one turn is part of what it reads in the next, as text, through the chat template.

Without a template the answer stands where it was said, right after its turn, and the next turn on a line of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specjax import LM, api
from specjax.bench.plan import Encoded, Experiment, Plan, Task
from specjax.prompts import Prompt


def encode(target: LM, prompt: Prompt, chat: bool) -> Encoded:
    """Token ids of the first turn, and of each later one as if every answer were empty: what the turns themselves take up.

    Raises:
      ValueError: no tokens, or the chat template refuses such a conversation.
    """
    try:
        tokens, *later = (_tokens(target, prompt.turns, [""] * turn, chat) for turn in range(len(prompt.turns)))
    except ValueError as error:
        raise ValueError(f"prompt {prompt.question_id!r}: {error}") from error
    if not tokens:
        raise ValueError(f"prompt {prompt.question_id!r} has no tokens: it needs at least one")
    return Encoded(prompt, tokens, tuple(later))


def room(encoded: Encoded, turn: int, plan: Plan) -> int:
    """Tokens that the prompt of a turn may have: its turns, and as many for each answer as may be decoded."""
    return len([encoded.tokens, *encoded.later][turn]) + turn * plan.max_new_tokens


def prompt_tokens(experiment: Experiment, task: Task, answers: Mapping[tuple, str]) -> list[int]:
    """What a task reads. answers: texts by `Task.key`, of its arm's earlier turns too.

    Text may take more tokens than it was decoded in (half a character at the end of a budget becomes a whole one). Such an answer loses
    characters at its end until the prompt has the room that was reserved: a matter of this conversation alone, and the same in each run.

    Raises:
      RuntimeError: the chat template refuses the answers.
    """
    kept, tokens = [], task.encoded.tokens
    try:
        for turn in range(1, task.turn + 1):
            kept.append(answers[task._replace(turn=turn - 1).key])
            tokens, kept[-1] = _fitting(experiment, task.encoded, kept)
    except ValueError as error:
        raise RuntimeError(f"prompt {task.encoded.prompt.question_id!r}: {error}") from error
    return tokens


def _fitting(experiment: Experiment, encoded: Encoded, answers: Sequence[str]) -> tuple[list[int], str]:
    """Token ids of the turn after these answers, and what is left of the last one."""
    *before, last = answers
    most = room(encoded, len(answers), experiment.plan)
    for end in range(len(last), -1, -1):
        tokens = _tokens(experiment.target, encoded.prompt.turns, [*before, last[:end]], experiment.plan.prompts.chat)
        if len(tokens) <= most:
            return tokens, last[:end]
    raise ValueError(f"turn {len(answers)} takes {len(tokens)} tokens without the last answer, {most} are reserved")


def _tokens(target: LM, turns: Sequence[str], answers: Sequence[str], chat: bool) -> list[int]:
    """Of the conversation up to the turn after the last answer."""
    first, *rest = turns[: len(answers) + 1]
    if not answers:
        return api.encode(target, [first], chat)[0]
    pairs = list(zip(answers, rest, strict=True))
    if not chat:
        return target.tokenizer.encode(first + "".join(f"{answer}\n{turn}" for answer, turn in pairs))
    messages = [{"role": "user", "content": first}]
    for answer, turn in pairs:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
    return target.tokenizer.chat(messages)
