"""Certificates: the exact law of what a rule emits, by enumeration. As a command: `python -m specjax.certify`."""

from specjax.certify.law import Exact, exact_law
from specjax.certify.transport import bound
from specjax.certify.verdict import Verdict

__all__ = ["Exact", "Verdict", "bound", "exact_law"]
