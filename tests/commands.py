"""A command called in this process, as often as one likes."""

import sys

from absl import flags

from specjax import command


def call(module, monkeypatch, *args) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *args])  # where config_flags looks for --config.x=y
    for name in [name for name in flags.FLAGS if name.startswith("config.")]:
        delattr(flags.FLAGS, name)  # overrides of the call before
    flags.FLAGS.unparse_flags()
    module.main(command.parse_flags(sys.argv))
