"""Stop strings, found in committed text without leaving the compiled loop (Aho and Corasick, 1975).

The automaton that looks for all strings at once reads bytes; here its steps over the bytes of one token are composed, so that the loop
takes one look-up a token. A string may begin in one token and end in another, or begin in the prompt; it must end in the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from specjax.types import Array, struct

STATES = 32  # the table's states are a multiple of it, so that other strings compile nothing


@struct
class StopTable:
    """next_VQ: int32, where the automaton is after token v read in state q, plus Q if some string ended on the way."""

    next_VQ: Array

    def walk(self, state_B, token_BM):
        """(state_BM, hit_BM) after each token of a block: the automaton's state, and whether a string ended in that token."""
        states = self.next_VQ.shape[1]
        state_M, hit_M = [], []
        for m in range(token_BM.shape[1]):
            value_B = self.next_VQ[token_BM[:, m], state_B]
            state_B = value_B % states
            state_M.append(state_B)
            hit_M.append(value_B >= states)
        return jnp.stack(state_M, axis=1), jnp.stack(hit_M, axis=1)


def table(stops: Sequence[bytes], token_bytes: Sequence[bytes], vocab: int) -> StopTable:
    """The automaton of the strings over the tokens' bytes.

    Raises:
      ValueError: a string is empty.
    """
    if empty := [s for s in stops if not s]:
        raise ValueError(f"stop={empty[0]!r} is empty: a stop string needs at least one character")
    step_QX, ends_Q = _automaton(stops)
    states = len(step_QX)
    longest = max(map(len, token_bytes), default=0)
    byte_VL = np.zeros((vocab, longest), np.uint8)
    length_V = np.zeros(vocab, np.int32)
    for token, text in enumerate(token_bytes[:vocab]):
        byte_VL[token, : len(text)] = np.frombuffer(text, np.uint8)
        length_V[token] = len(text)
    state_VQ = np.broadcast_to(np.arange(states, dtype=np.int32), (vocab, states)).copy()
    hit_VQ = np.zeros((vocab, states), bool)
    for place in range(longest):
        reads = np.flatnonzero(length_V > place)
        state_VQ[reads] = step_QX[state_VQ[reads], byte_VL[reads, place][:, None]]
        hit_VQ[reads] |= ends_Q[state_VQ[reads]]
    padded = -(-states // STATES) * STATES
    state_VQ += padded * hit_VQ
    return StopTable(next_VQ=np.pad(state_VQ, ((0, 0), (0, padded - states))))


def start(stop: StopTable, prompt: Sequence[int]) -> int:
    """The automaton's state after a prompt: what of a string stands at its end. Strings that ended in it do not count."""
    state = 0
    for token in prompt:
        state = stop.next_VQ[token, state] % stop.next_VQ.shape[1]
    return int(state)


def _automaton(stops: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(step_QX, ends_Q): the state after byte x in state q, and whether a string ends in a state. State 0 is the start."""
    children, ends = [{}], [False]
    for stop in stops:
        node = 0
        for byte in stop:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
                ends.append(False)
            node = children[node][byte]
        ends[node] = True
    step_QX, fail_Q = np.zeros((len(children), 256), np.int32), [0] * len(children)
    queue = [0]
    for node in queue:  # breadth first, so that what a state falls back to is complete
        fall_back = step_QX[fail_Q[node]].copy()
        if node:
            step_QX[node] = fall_back
        for byte, child in children[node].items():
            fail_Q[child] = int(fall_back[byte]) if node else 0
            ends[child] |= ends[fail_Q[child]]
            step_QX[node, byte] = child
            queue.append(child)
    return step_QX, np.asarray(ends)


def cut(text: str, token_bytes: Sequence[bytes], stops: Sequence[bytes], prompt: Sequence[int], output: Sequence[int]) -> str:
    """The text of an output that ended in a stop string, without that string: of those that end in the last token, the first to end."""
    before = b"".join(token_bytes[t] for t in prompt)[-max(map(len, stops)) :]
    said = b"".join(token_bytes[t] for t in output)
    whole = before + said
    for end in range(len(whole) - len(token_bytes[output[-1]]) + 1, len(whole) + 1):
        if ended := [s for s in stops if whole.endswith(s, 0, end)]:
            kept = end - max(map(len, ended)) - len(before)
            tail = said[max(kept, 0) :].decode("utf-8", errors="replace")
            return text.removesuffix(tail) if text.endswith(tail) else said[: max(kept, 0)].decode("utf-8", errors="replace")
    raise ValueError(f"no stop string ends in the last token of {text!r}")
