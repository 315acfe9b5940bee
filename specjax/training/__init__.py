"""Training drafts: data made by the target itself, losses, the trainer, and the folder that comes out.

The convention
  rows         what a batch is, which rows count, what a token sees
  targets      the target's laws: whole, or the likeliest tokens and the rest
Data
  self_prompt, answers, texts   sources of texts; filters: what they leave out; shards: where they keep the others
  existing     shards that are there already
  pack         texts into rows; scores: what the target says of rows; feed: batches without end
  on_policy    continuations drawn from the draft; mixing: a part of every batch
Learning
  drafts/      what can be trained, a kind a file
  losses       one equation each, their weighted sums, and the loss of a batch over all places of a draft
  step         one step; evaluate, held_out: how well the draft would draft; checkpoint, metrics: what is kept of it
  plan         the dataclasses of a config; prepare: all before the first step; loop: from there to the draft's folder
  export       that folder, which `specjax.load_drafter` reads
"""
