"""Files on their way between a launcher and an agent: a model with its neighbours, data sets, trained weights."""

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
