"""Execute the notebooks of docs/ and write what they show, as it is committed.

    python -m tests.notebooks.execute [NAME ...]

NAME is that of a file without its suffix; default: every notebook. Half an hour of one
core each; needs nbclient and ipykernel, which the extra `dev` brings.
"""

import json
import sys
import tempfile

from tests.notebooks.test_notebooks import FOLDER, NOTEBOOKS


def execute(path):
    """Execute one notebook in an empty folder; its clock times are left out."""
    import nbclient
    import nbformat

    old, fresh = json.loads(path.read_text()), nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(fresh, timeout=3600).execute(cwd=folder)
    new = json.loads(nbformat.writes(fresh))
    for cell in new["cells"]:
        cell["metadata"] = {}
    new["metadata"] = old["metadata"]
    path.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or NOTEBOOKS:
        execute(path)
        print(path)
