"""Runs every command of `docs/tutorial.md` in an empty folder and puts what it printed below it.

python tools/write_tutorial.py         (some minutes; on a quiet machine, with PyTorch alone installed or more)

Blocks that begin with ```console are run in order. `from=TEXT` shows the output from the first line with that text on,
`lines=N` so many lines of it; what is left out becomes `...`. A Python block that begins with `# my.py` becomes that
file.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
FILE = re.compile(r"^```python\n# (?P<name>\S+\.py)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
SESSION = re.compile(r"^```console(?P<cut>[^\n]*)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
COLUMNS = 80


def shown(output: str, cut: str) -> str:
    """The part of an output that the tutorial shows."""
    start, count = re.search(r"from='([^']+)'", cut), re.search(r"lines=(\d+)", cut)
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    first = next((number for number, line in enumerate(lines) if start and start[1] in line), 0)
    last = first + int(count[1]) if count else len(lines)
    return "\n".join([*["..."][: bool(first)], *lines[first:last], *["..."][: last < len(lines)]])


def run_session(body: str, folder: Path) -> tuple[str, str]:
    """The commands of a block, and what they printed."""
    commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)], cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": str(COLUMNS)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{commands[-1]}\n{done.stdout}\nended with exit code {done.returncode}")
    return "".join(f"$ {command}\n" for command in commands), done.stdout


def with_outputs(text: str, folder: Path) -> str:
    """The tutorial with every command run anew."""
    for file in FILE.finditer(text):
        (folder / file["name"]).write_text(file["text"])

    def rerun(block: re.Match[str]) -> str:
        commands, output = run_session(block["body"], folder)
        part = shown(output, block["cut"])
        return f"```console{block['cut']}\n{commands}{part}{chr(10) * bool(part)}```"

    return SESSION.sub(rerun, text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        TUTORIAL.write_text(with_outputs(TUTORIAL.read_text(), Path(name)))
