"""Write tests/goldens/ with torch and transformers: `python tests/make_goldens.py`, from the repository root, about 20 s.

What transformers computes in float32, on the CPU, so that the tests need neither it nor torch:
- `smollm2.npz`: the real model on 200 tokens of our own text (all positions x 64 ids, and each row's maximum and argmax), and
  64 greedy tokens after a chat prompt;
- one folder for each of a few random tiny checkpoints of every family, as `save_pretrained` writes them, with its logits on a text in
  `golden.npz`: a random prompt, and but for the first three of llama 40 greedy tokens after it.
"""

from __future__ import annotations

import pathlib
import shutil

import hf_parity
import numpy as np

from specjax.models import load
from specjax.models.config import ModelConfig
from specjax.models.load import fetch

GOLDENS = pathlib.Path(__file__).parent / "goldens"
TEXT = """A lighthouse keeper wrote the same three lines in his log every evening: the wind, the sea, and the hour at which he
lit the lamp. One night in March 1907 he added a fourth. "A boat without lights," it said, "going out, not coming in." Nobody in
the village had missed a boat. He rowed over on Sunday and asked at each door, 14 doors in all, and was given tea at nine of them.
def wind_chill(t, v):
    return 13.12 + 0.6215 * t - 11.37 * v**0.16 + 0.3965 * t * v**0.16
The café's naïve owner said: "Il n'y a pas de bateau!" — and laughed. By spring the fourth line had become a habit. Each evening
the keeper looked for the boat, and each evening he wrote down that he had not seen it, which took longer than lighting the lamp.
"""
PROMPT = [{"role": "user", "content": "Explain in a few sentences why the sky is blue."}]

TINY = dict(vocab=48, width=16, layers=2, ff=24, max_positions=64)
CHECKPOINTS = {
    "llama_tied_grouped": ModelConfig(**TINY, heads=4, kv_heads=2, head_size=6, tied=True, rope_theta=500.0),
    "llama_untied": ModelConfig(**TINY, heads=2, kv_heads=2, head_size=8, tied=False, norm_eps=1e-3),
    "llama_sharded": ModelConfig(**TINY, heads=8, kv_heads=2, head_size=4, tied=False, rope_theta=100_000.0),
}
FAMILIES = (
    "llama_llama3", "llama_yarn", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma2", "gemma3", "gpt2", "neox", "phi3_long"
)  # fmt: skip


def real() -> None:
    checkpoint = load.load(fetch.SMOLLM2)
    model = hf_parity.to_transformers(checkpoint.config, checkpoint.params)
    tokens = np.asarray(checkpoint.tokenizer.encode(TEXT)[:200])
    assert len(tokens) == 200
    rows = hf_parity.logits(model, tokens)
    ids = np.sort(np.random.default_rng(0).choice(checkpoint.config.vocab, 64, replace=False))
    prompt = np.asarray(checkpoint.tokenizer.chat(PROMPT))
    np.savez_compressed(
        GOLDENS / "smollm2.npz",
        tokens=tokens.astype(np.int32),
        ids=ids.astype(np.int32),
        logits=rows[:, ids],
        row_max=rows.max(1),
        row_argmax=rows.argmax(1).astype(np.int32),
        prompt=prompt.astype(np.int32),
        greedy=hf_parity.greedy(model, prompt, 64).astype(np.int32),
    )


def tiny() -> None:
    for seed, (name, config) in enumerate(CHECKPOINTS.items()):
        folder = GOLDENS / name
        shutil.rmtree(folder, ignore_errors=True)
        model = hf_parity.random_llama(config, seed)
        model.save_pretrained(folder, max_shard_size="8KB" if "sharded" in name else "5GB")
        tokens = np.random.default_rng(seed).integers(0, config.vocab, 40)
        np.savez_compressed(folder / "golden.npz", tokens=tokens.astype(np.int32), logits=hf_parity.logits(model, tokens))


def families() -> None:
    for seed, name in enumerate(FAMILIES):
        folder = GOLDENS / name
        shutil.rmtree(folder, ignore_errors=True)
        model = hf_parity.random_model(name, seed, vocab=48, width=16, heads=2, kv_heads=1, ff=24)
        model.save_pretrained(folder)
        tokens = hf_parity.text(model, seed, vocab=48, prompt=36, new=40)
        np.savez_compressed(folder / "golden.npz", tokens=tokens, prompt=36, logits=hf_parity.logits(model, tokens))


if __name__ == "__main__":
    GOLDENS.mkdir(exist_ok=True)
    tiny()
    families()
    real()
