"""Which files a user's program is: itself and the user's own modules that it imports, found without running any.

Modules of the standard library and installed packages are not the user's; all others are, wherever they lie.
"""

import ast
import hashlib
import shlex
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from paceline.errors import SpecError, UserError, near_names
from paceline.user_input.paths import is_file, read_content, user_path

# Characters of an identity.
KEY_LENGTH = 16
# Part of each identity: raised when files are found otherwise, so that old records never answer for new runs.
IDENTITY_VERSION = 2
# Folders of installed packages, in whatever environment.
INSTALLED = frozenset({"site-packages", "dist-packages"})
# A program may import Paceline itself, whose changes are none of its own.
OURS = "paceline"


def source_files(program: Path) -> dict[str, Path]:
    """The program's own file under the empty name, and by dotted name the user's modules that it imports in turn."""
    # Files may have been written a moment ago.
    invalidate_caches()
    files, waiting = {"": program}, [("", program)]
    while waiting:
        name, file = waiting.pop()
        for imported in _imported(name, file):
            for module, path in _modules(imported, program.parent):
                if module not in files and path != program:
                    files[module] = path
                    waiting.append((module, path))
    return files


def files_by_place(program: Path) -> dict[str, Path]:
    """All its files by the place below one folder at which the program finds them when it is copied there."""
    return {_place(name, path): path for name, path in source_files(program).items()}


def _place(module: str, path: Path) -> str:
    parts = module.split(".") if module else []
    packages = parts if path.name == "__init__.py" else parts[:-1]
    return "/".join([*packages, path.name])


def identity(program: Path, length: int) -> str:
    """A text that changes with the program or any module of the user's that it imports, and not with their place."""
    digest = hashlib.sha256(f"{IDENTITY_VERSION}".encode())
    for name, path in sorted(source_files(program).items()):
        try:
            content = read_content(path)
        except OSError as error:
            raise SpecError(f"{path} cannot be read: {error.strerror}; see who may read it, or name another") from None
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:length]


@contextmanager
def refusing_unreadable(what: str, kind: type[UserError]) -> Iterator[None]:
    """Around reading a program: says in words that a file cannot be read, or is beyond what Python reads."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} cannot be read: {error.strerror}; see who may read it") from None
    except (RecursionError, MemoryError):
        raise kind(f"{what} has an expression that is too long for Python to read; break it into several") from None


def _imported(name: str, file: Path) -> Iterator[str]:
    """Dotted names of what a file imports, anywhere in it; relative ones are of its own package."""
    try:
        tree = ast.parse(read_content(file))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".") if package else []
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _modules(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The user's module of that name and the packages that it is in, with their files; what is no module ends it."""
    parts = [part for part in name.split(".") if part]
    if not parts or parts[0] == OURS:
        return
    spec = _top_level(parts[0], str(folder))
    for number, part in enumerate(parts):
        if number:
            places = spec.submodule_search_locations if spec is not None else None
            spec = _find(part, tuple(places)) if places else None
        if spec is None or not _is_users(spec):
            return
        dotted = ".".join(parts[: number + 1])
        if spec.has_location and spec.origin is not None and Path(spec.origin).is_file():
            yield dotted, Path(spec.origin).resolve()


def _top_level(name: str, folder: str) -> ModuleSpec | None:
    """The module as a worker finds it: beside the program first, then where Python looks anyway."""
    beside = _find(name, (folder,))
    # A folder without Python in it is a package by its name only, and hides nothing that is installed.
    if beside is not None and beside.has_location:
        return beside
    try:
        return find_spec(name) or beside
    except (ImportError, ValueError, AttributeError):
        return beside


def _find(name: str, places: tuple[str, ...]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, list(places))
    except (ImportError, ValueError):
        return None


def _is_users(spec: ModuleSpec) -> bool:
    if not spec.has_location:
        # A package without a file of its own has places; what is built in has none.
        return spec.submodule_search_locations is not None
    place = Path(spec.origin or "").resolve()
    return INSTALLED.isdisjoint(place.parts) and not any(place.is_relative_to(folder) for folder in _standard_library())


@cache
def _standard_library() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})


class UserFile(BaseModel):
    """A file of the user's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    path: Path
    digest: str


class ModelFile(UserFile):
    """A user's own model: a function in a file. Texts of its modules and what it was seen to be are its identity."""

    function: str = "build"
    # Of the names and shapes that the probe saw, of the model and of its data; empty where it was not looked at.
    structure: str = ""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """`path/to/file.py:build`; the function may be left out."""
        name, _, function = text.partition(":")
        path = user_path(name, "--model")
        if not is_file(path):
            raise SpecError(
                f"--model {text}: there is no file {path}; give the path of a Python file, such as my.py:build"
            )
        return cls(path=path, function=function or "build", digest=identity(path, KEY_LENGTH))

    @property
    def label(self) -> str:
        """The name of the model in tables."""
        return f"{self.path.name}:{self.function}"


class ScriptFile(UserFile):
    """A user's own training script and its arguments. They and the texts of its modules are its identity."""

    arguments: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str, arguments: Sequence[str] = ()) -> Self:
        """The script at that path."""
        path = user_path(text, "script")
        if not is_file(path):
            near = near_names(path.stem, sorted(file.stem for file in path.parent.glob("*.py") if is_file(file)))
            meant = f"did you mean {near[0]}.py?" if near else "give the path of a Python file, such as train.py"
            raise SpecError(f"there is no script {path}; {meant}")
        try:
            with refusing_unreadable(f"script {path}", SpecError):
                compile(read_content(path), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            raise SpecError(f"{path.name} is no Python that could run: {error.args[0]}{where}; mend it first") from None
        return cls(path=path, arguments=tuple(arguments), digest=identity(path, KEY_LENGTH))

    @property
    def label(self) -> str:
        """The name of the script in tables, with its arguments."""
        return shlex.join([self.path.name, *self.arguments])
