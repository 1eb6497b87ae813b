"""Files on their way between a launcher and an agent: a model with its neighbours, data sets, trained weights."""

import ast
from collections.abc import Iterator
from pathlib import Path

from paceline.runs.agent.messages import FilePart

PART_BYTES = 1 << 20


def file_parts(file: Path, name: str) -> Iterator[FilePart]:
    """The file in parts, under the name that it will have in the other side's folder."""
    size, sent = file.stat().st_size, 0
    with file.open("rb") as content:
        while True:
            data = content.read(PART_BYTES)
            first, sent = sent == 0, sent + len(data)
            yield FilePart(name=name, data=data, first=first, last=sent >= size or not data)
            if sent >= size or not data:
                return


def keep_part(part: FilePart, folder: Path) -> Path:
    """Adds the part to its file in the folder; a name that leads out of the folder is refused."""
    file = (folder / part.name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ValueError(f"file {part.name!r} would not be in the folder of the agent")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb" if part.first else "ab") as content:
        content.write(part.data)
    return file


def model_files(model: Path) -> list[Path]:
    """A user's model file and the files beside it that it imports, and those that these import in turn."""
    folder, waiting, files = model.parent, [model], list[Path]()
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.append(file)
        for name in _imported(file, folder):
            waiting += _files_of(name, folder)
    return files


def _imported(file: Path, folder: Path) -> Iterator[str]:
    """Dotted names of what a file imports; relative imports are of its own package."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = ".".join(file.relative_to(folder).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _files_of(name: str, folder: Path) -> list[Path]:
    """The file of a module in the folder and of the packages that it is in; none where it is installed elsewhere."""
    files, place = list[Path](), folder
    for part in [word for word in name.split(".") if word]:
        if (place / f"{part}.py").is_file():
            return [*files, place / f"{part}.py"]
        place = place / part
        if not place.is_dir():
            break
        if (place / "__init__.py").is_file():
            files.append(place / "__init__.py")
    return files
