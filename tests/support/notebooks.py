"""Notebooks, run from top to bottom as a reader would run them.

python tests/support/notebooks.py [NAME ...]    # write what they print and draw into them
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

_FULL_S = 2400  # a full calibration is one cell
_RETURNS = re.compile(r"[^\n]*\r(?!\n)")  # what a bar of letters draws over
_FOLDER = Path(__file__).parent.parent.parent / "notebooks"
NOTEBOOKS, PAPERS = sorted(_FOLDER.glob("*.ipynb")), sorted(_FOLDER.glob("papers/*.ipynb"))


def executed(path: Path, folder: Path, timeout_s: int = 300) -> nbformat.NotebookNode:
    """A notebook after every cell ran in `folder`, each for at most so long, by the interpreter
    that runs this (no installed kernel is asked for).
    """
    notebook = nbformat.read(path, as_version=4)
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    try:
        NotebookClient(
            notebook, km=kernel, timeout=timeout_s, resources={"metadata": {"path": str(folder)}}
        ).execute()
    finally:  # a kernel that was handed over is not the client's to end, and keeps a gigabyte
        run_sync(kernel.shutdown_kernel)(now=True)
    return notebook


def shown(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What kinds of output each code cell has, without remarks of libraries."""
    return [
        [*dict.fromkeys(kind for output in cell.outputs for kind in _kinds(output))]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _kinds(output: nbformat.NotebookNode) -> list[str]:
    if output.output_type == "stream":
        return ["text"] if output.name == "stdout" else []
    return [kind for kind in ("image/png", "text/html") if kind in output.get("data", {})]


def _without_remarks(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs as they are committed: no standard error, of a moving bar its end, no counts."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.output_type == "stream" and kept and kept[-1].output_type == "stream":
            kept[-1].text += output.text
        else:
            kept.append(output)
        if "execution_count" in output:
            output.execution_count = None
    for output in kept:
        if output.output_type == "stream":
            output.text = _RETURNS.sub("", output.text)
    return kept


def main() -> None:
    os.environ.setdefault("HYBRIDPERF_SETTING", "quick")
    for path in NOTEBOOKS + PAPERS:
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, path.parent if path in PAPERS else Path(folder), _FULL_S)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = None
                cell.metadata.pop("execution", None)
                cell.outputs = _without_remarks(cell.outputs)
        nbformat.write(notebook, path)
        print(path.name, f"{path.stat().st_size / 1e3:,.0f} kB", flush=True)


if __name__ == "__main__":
    main()
