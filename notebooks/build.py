"""Write the notebooks from the Python files beside them, which are what one edits.

    python notebooks/build.py [--run] [tutorial ...]     (needs pip install -e '.[notebooks]')

Without --run a cell that did not change keeps its figures. With it each notebook is run from top to bottom, and its figures are
kept: pictures only, so that a page which shows a notebook without a kernel has them, and no text, which the next run says anew.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
NAMES = "tutorial", "write_a_rule", "distill_a_draft"
LONGEST = 3600  # seconds of a cell
KEPT = "image/png"


def read(name: str) -> NotebookNode:
    """The notebook that a Python file is, without outputs; its cells are named by their number, so that nothing changes by itself."""
    notebook = jupytext.read(HERE / f"{name}.py")
    notebook.metadata = {"jupytext": {"formats": "ipynb,py:percent"}, "kernelspec": notebook.metadata["kernelspec"]}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{name}-{number}"
        cell.metadata = {}
    return notebook


def run(notebook: NotebookNode) -> NotebookNode:
    """Run it in a kernel of this Python, where the notebooks are.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    return NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()


def pictures(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """What is kept of a cell's outputs."""
    shown = [output for output in outputs if KEPT in output.get("data", {})]
    metadata = [{KEPT: output.metadata[KEPT]} if KEPT in output.metadata else {} for output in shown]
    return [
        nbformat.v4.new_output("display_data", {KEPT: output.data[KEPT].strip()}, metadata=about)
        for output, about in zip(shown, metadata, strict=True)
    ]


def build(name: str, anew: bool) -> None:
    path, notebook = HERE / f"{name}.ipynb", read(name)
    if anew:
        made = run(read(name)).cells
    else:
        made = nbformat.read(path, 4).cells if path.exists() else []
    known = {cell.source: cell.outputs for cell in made if cell.cell_type == "code"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = pictures(known.get(cell.source, []))
    nbformat.write(notebook, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="run them, and keep their figures")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    given = parser.parse_args()
    for name in given.names or NAMES:
        build(name, given.run)


if __name__ == "__main__":
    main()
