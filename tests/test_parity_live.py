"""Our model against transformers itself, on fresh random checkpoints that `save_pretrained` wrote."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_parity
import transformers
from test_models_load_tokenizer import backend

from specjax.models.border import border
from specjax.models.config import ModelConfig
from specjax.models.load import load, tokenizer

pytestmark = pytest.mark.parity
COMMON = {"vocab": 96, "width": 32, "layers": 3, "ff": 40, "max_positions": 128}


@functools.partial(jax.jit, static_argnums=0)
def step(model, params, token_BT, cache, cursor):
    """(logits [T, V], cache) of a piece of one sequence."""
    hidden_BTD, _, cache = model.forward(params, token_BT, cache, cursor[None])
    return model.head(params, hidden_BTD)[0], cache


def in_pieces(model, params, tokens) -> np.ndarray:
    """Logits [T, V] of one sequence, fed 20 tokens at a time and the last 20 one by one. Before some pieces a wrong one is fed and taken
    back by leaving the cursor where it was: at 0, within the windows and beyond them."""
    cache, cursor, out = model.init_cache(1, 128), 0, []
    for width in [20] * 4 + [1] * 20:
        piece = jnp.asarray(tokens[cursor : cursor + width])[None]
        if cursor in (0, 20, 60, 81, 95):
            _, cache = step(model, params, (piece + 1) % 96, cache, jnp.asarray(cursor))
        logits, cache = step(model, params, piece, cache, jnp.asarray(cursor))
        out.append(np.asarray(logits))
        cursor += width
    return np.concatenate(out)


@pytest.mark.parametrize("name", hf_parity.FAMILIES)
def test_family(tmp_path, name):
    """Every family and option: logits, and by them 40 greedy tokens, whether fed in blocks or token by token, and with rollbacks; texts
    are longer than every window and every original length."""
    theirs = hf_parity.random_model(name, seed=7)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB" if name == "llama" else "5GB")
    tokens = hf_parity.text(theirs, seed=7, vocab=96, prompt=60, new=40)
    wanted = hf_parity.logits(theirs, tokens)
    checkpoint = load(str(tmp_path))
    ours = in_pieces(*border(checkpoint.config, checkpoint.params), tokens)
    assert np.ptp(wanted) > 5
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(ours[59:-1].argmax(1), tokens[60:])


def test_our_tree_goes_back_to_the_same_tensors(tmp_path):
    theirs = hf_parity.random_llama(ModelConfig(**COMMON, heads=8, kv_heads=2, head_size=4, tied=False), seed=8)
    theirs.save_pretrained(tmp_path)
    checkpoint = load(str(tmp_path))
    back, wanted = hf_parity.state_dict(checkpoint.config, checkpoint.params), theirs.state_dict()
    assert back.keys() == wanted.keys()
    assert all((back[name] == wanted[name]).all() for name in wanted)


TEMPLATES = [
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ bos_token + m.content | trim }}\n  {% endif %}\n{% endfor %}{{ eos_token }}",
    "{% if tools is not none %}tools{% endif %}{{ messages | tojson }}{% if add_generation_prompt %}hello{% endif %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_template_and_saved_tokenizer(tmp_path, template):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend(), chat_template=template, **special)
    theirs.save_pretrained(tmp_path)
    ours = tokenizer.from_folder(tmp_path)
    chat = [{"role": "user", "content": " hello <é'> "}, {"role": "assistant", "content": "12"}]
    assert ours.render(chat) == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ours.chat(chat) == theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert (ours.bos_id, ours.eos_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))
