"""Plain decoding against transformers (torch float32) and llama.cpp (float32), and the cost of wider passes.

    pip install -e '.[bench]' && python benchmarks/plain.py

SmolLM2-135M-Instruct, float32, batch 1, two threads, a prompt of 200 tokens, 128 new tokens, S = 384, decode only: rounds of (specjax,
transformers, llama.cpp) interleaved in one process, medians and ratios. llama.cpp gets the same dequantised weights as a float32 GGUF and
is driven by its low-level decode call with argmax. `--without` leaves a contender out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import specjax
import specjax.prompts
from specjax.models.load import fetch, load

PROMPT, NEW, SIZE, THREADS = 200, 128, 384, 2


def main():
    args = parse()
    checkpoint = load(fetch.SMOLLM2)
    target = specjax.load(fetch.SMOLLM2)
    text = " ".join(p.turns[0] for p in specjax.prompts.load("own", categories=["summarisation"], limit=2))
    prompt = target.tokenizer.encode(text)[:PROMPT]
    contenders = {"specjax": ours(target, prompt)}
    if "transformers" not in args.without:
        contenders["transformers"] = transformers_loop(checkpoint, prompt)
    if "llama.cpp" not in args.without:
        contenders["llama.cpp"] = llama_cpp_loop(checkpoint, prompt)
    times, tokens = {name: [] for name in contenders}, {}
    for turn in range(args.rounds + 1):  # the first is the warm-up
        for name, run in contenders.items():
            seconds, tokens[name] = run()
            if turn:
                times[name].append(seconds / NEW * 1e3)
    print(f"{'':14}{'ms/token (median)':>20}{'min':>8}{'max':>8}{'times specjax':>15}{'same tokens':>13}")
    for name, ms in times.items():
        ratio = statistics.median(other / own for other, own in zip(ms, times["specjax"], strict=True))
        same = sum(np.cumprod(np.array(tokens[name]) == np.array(tokens["specjax"])))
        print(f"{name:14}{statistics.median(ms):20.2f}{min(ms):8.2f}{max(ms):8.2f}{ratio:15.2f}{same:9} of {NEW}")
    widths(target, args.rounds)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without", nargs="*", default=[], choices=["transformers", "llama.cpp"])
    return parser.parse_args()


def ours(target, prompt):
    decoder = specjax.Decoder(target, eos=())

    def run():
        state = jax.block_until_ready(decoder.prefill(decoder.start([prompt], NEW, size=SIZE)))
        begin = time.perf_counter()
        state = jax.block_until_ready(decoder.generate(state))
        return time.perf_counter() - begin, decoder.output(state).token_ids[0]

    return run


def transformers_loop(checkpoint, prompt):
    import torch
    from hf_parity import to_transformers

    torch.set_num_threads(THREADS)
    model = to_transformers(checkpoint.config, checkpoint.params)

    @torch.inference_mode()
    def run():
        cache = model(torch.tensor([prompt[:-1]]), use_cache=True).past_key_values
        token, out = torch.tensor([[prompt[-1]]]), []
        begin = time.perf_counter()
        for _ in range(NEW):
            step = model(token, past_key_values=cache, use_cache=True)
            cache, token = step.past_key_values, step.logits[:, -1:].argmax(-1)
            out.append(int(token))
        return time.perf_counter() - begin, out

    return run


def llama_cpp_loop(checkpoint, prompt):
    import llama_cpp

    path = float32_gguf(fetch.resolve(fetch.SMOLLM2))
    model = llama_cpp.Llama(str(path), n_ctx=SIZE, n_batch=PROMPT, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)
    vocab = checkpoint.config.vocab

    def run():
        model.reset()
        model.eval(prompt[:-1])
        token, out = prompt[-1], []
        batch = llama_cpp.llama_batch_init(1, 0, 1)
        batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, 1
        begin = time.perf_counter()
        for position in range(len(prompt) - 1, len(prompt) - 1 + NEW):
            batch.token[0], batch.pos[0] = token, position
            if llama_cpp.llama_decode(model.ctx, batch):
                raise RuntimeError("llama_decode failed")
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(model.ctx), (vocab,))
            token = int(logits.argmax())
            out.append(token)
        seconds = time.perf_counter() - begin
        llama_cpp.llama_batch_free(batch)
        return seconds, out

    return run


def float32_gguf(source: Path) -> Path:
    """A copy of a GGUF file with every tensor dequantised to float32."""
    import gguf

    reader = gguf.GGUFReader(source)
    path = Path(tempfile.mkdtemp()) / "float32.gguf"
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def widths(target, rounds, sizes=(1, 2, 4, 5, 8, 16), passes=20):
    """v(n): a pass over n tokens (forward, head, argmax) against one over 1, interleaved."""

    def repeat(width):
        def one(params, carry):
            cache, token_BT = carry
            hidden, _, cache = target.model.forward(params, token_BT, cache, jnp.full(1, PROMPT))
            return cache, specjax.sampling.first_argmax(target.model.head(params, hidden))

        def turns(cache, params, token_BT):
            return jax.lax.fori_loop(0, passes, lambda _, carry: one(params, carry), (cache, token_BT))

        return jax.jit(turns, donate_argnums=0), jnp.ones((1, width), jnp.int32)

    loops = {n: repeat(n) for n in sizes}
    times = {n: [] for n in sizes}
    cache = target.model.init_cache(1, SIZE)
    for turn in range(rounds + 1):
        for n, (loop, token_BT) in loops.items():
            begin = time.perf_counter()
            cache, _ = jax.block_until_ready(loop(cache, target.params, token_BT))
            if turn:
                times[n].append((time.perf_counter() - begin) / passes * 1e3)
    for n in sizes:
        ratio = statistics.median(a / b for a, b in zip(times[n], times[1], strict=True))
        print(f"v({n}) = {ratio:.2f}   ({statistics.median(times[n]):.2f} ms)")


if __name__ == "__main__":
    main()
