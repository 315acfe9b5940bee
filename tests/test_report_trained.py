import io

from rich.console import Console

from specjax.report import trained


def test_places_before_and_after_and_the_folder_to_use():
    before = dict(overlap=[0.25, 0.2], rate=[0.25, 0.5], tokens_per_pass=1.375)
    after = dict(overlap=[0.75, 0.7], rate=[0.75, 0.8], tokens_per_pass=2.35)
    out = io.StringIO()
    trained.show(dict(step=40, before=before, after=after, path="runs/[x]/draft"), Console(file=out, width=100))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["1", "0.250", "0.750", "0.250", "0.750"] in lines and ["2", "0.200", "0.700", "0.500", "0.800"] in lines
    said = out.getvalue()
    assert "after step 40" in said and "tokens per pass, predicted for drafts of 2: 1.38 -> 2.35" in said
    assert "specjax.load_drafter('runs/[x]/draft', target)" in said and "path='runs/[x]/draft')" in said
