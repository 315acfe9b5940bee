"""Our model against transformers itself, on fresh random checkpoints that `save_pretrained` wrote."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_parity
import transformers
from test_models_load_tokenizer import backend
from test_parity_goldens import logits

from specjax.models.border import border
from specjax.models.config import ModelConfig
from specjax.models.load import load, tokenizer

pytestmark = pytest.mark.parity
COMMON = {"vocab": 96, "width": 32, "layers": 3, "ff": 40, "max_positions": 128}


@pytest.mark.parametrize(
    ("shape", "shards"),
    [
        ({"heads": 8, "kv_heads": 2, "head_size": 4, "tied": True, "rope_theta": 1e5}, "5GB"),
        ({"heads": 4, "kv_heads": 4, "head_size": 8, "tied": False, "norm_eps": 1e-3}, "5GB"),
        ({"heads": 4, "kv_heads": 1, "head_size": 10, "tied": False}, "20KB"),
    ],
)
def test_save_pretrained(tmp_path, shape, shards):
    theirs = hf_parity.random_llama(ModelConfig(**COMMON, **shape), seed=7)
    theirs.save_pretrained(tmp_path, max_shard_size=shards)
    checkpoint = load(str(tmp_path))
    assert vars(checkpoint.config) == pytest.approx(vars(ModelConfig(**COMMON, **shape)))
    tokens = np.random.default_rng(7).integers(0, 96, 100)
    wanted = hf_parity.logits(theirs, tokens)
    assert np.ptp(wanted) > 5
    np.testing.assert_allclose(logits(*border(checkpoint.config, checkpoint.params), tokens), wanted, rtol=0, atol=1e-4)


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
