"""System files: those that ship, one of the user's, and forms such as `8xh100-nvlink` with another network."""

import re
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.errors import SpecError, nearest
from paceline.systems.hardware import LOCAL, Hardware, Link
from paceline.user_input.paths import read_content
from paceline.user_input.toml import parse_toml

# What `paceline calibrate` writes and every other command reads unless told otherwise.
LOCAL_FILE = Path("paceline-system.toml")
# The key of a shipped system that names a file of timed operations, and the folder that they are in; and what beside
# operations comes from there.
MEASURED = "operations"
MEASURED_FIELDS = (
    "product_efficiency", "half_rate_flops", "memory_efficiency", "host_seconds_per_operation", "idle_watts",
    "busy_watts",
)  # fmt: skip
_MANY = re.compile(r"^(\d+)x(.+)$")


@cache
def shipped_systems() -> tuple[str, ...]:
    """Names of the systems that come with Paceline."""
    return tuple(sorted(file.name[:-5] for file in _folder().iterdir() if file.name.endswith(".toml")))


@cache
def networks() -> dict[str, Link]:
    """Links between nodes by name: 1g, 10g, 25g, 100g, 400g."""
    text = (_folder() / "networks" / "networks.toml").read_text()
    return {name: Link.model_validate(link) for name, link in tomllib.loads(text).items()}


def _folder() -> Any:
    return resources.files("paceline.systems") / "described"


def load_hardware(name: str | None = None, network: str | None = None) -> Hardware:
    """A system by name or file; without a name this machine as calibrated, else a machine of the tested class."""
    if name in (None, LOCAL):
        if name == LOCAL and not LOCAL_FILE.is_file():
            raise SpecError(
                f"--system {LOCAL} is this machine as it was measured, and there is no {LOCAL_FILE} here; "
                f"run paceline calibrate first"
            )
        hardware = _read_file(LOCAL_FILE) if LOCAL_FILE.is_file() else _by_name("cpu-2-cores")
    elif Path(str(name)).suffix == ".toml":
        hardware = _read_file(Path(str(name)))
    else:
        hardware = _by_name(str(name))
    if network is None:
        return hardware
    if network not in networks():
        raise SpecError(f"there is no network {network!r}; {nearest(network, networks())}")
    return hardware.model_copy(update={"outer": networks()[network]})


def _by_name(name: str) -> Hardware:
    many = _MANY.match(name)
    count, base = (int(many[1]), many[2]) if many and name not in shipped_systems() else (None, name)
    if base not in shipped_systems():
        known = [*shipped_systems(), LOCAL] if count is None else [f"{count}x{system}" for system in shipped_systems()]
        raise SpecError(f"there is no system {name!r}; {nearest(name, known)}")
    hardware = _read_text((_folder() / f"{base}.toml").read_text(), base)
    if count is None:
        return hardware
    if not count:
        raise SpecError(f"system {name!r} has no devices; write such as 8x{base}")
    return hardware.model_copy(update={"node_devices": count, "name": name})


def _read_file(path: Path) -> Hardware:
    try:
        return _read_text(read_content(path).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"system file {path} cannot be read: {error}; name a system or another file") from None


def _read_text(text: str, where: str) -> Hardware:
    try:
        values = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"system {where} is not valid TOML: {error}; mend it or run paceline calibrate again") from None
    measured = values.pop(MEASURED, None)
    hardware = Hardware.read(values, where)
    return hardware if measured is None else _with_operations(hardware, str(measured))


def _with_operations(hardware: Hardware, name: str) -> Hardware:
    """The system with the operation timings that `paceline calibrate` measured on the same GPU."""
    file = _folder() / MEASURED / f"{name}.toml"
    if not file.is_file():
        names = (entry.name.removesuffix(".toml") for entry in (_folder() / MEASURED).iterdir())
        raise SpecError(f"system {hardware.name}: there are no {MEASURED} {name!r}; {nearest(name, [*names])}")
    measured = Hardware.read(tomllib.loads(file.read_text()), name)
    device = hardware.device.model_copy(update={field: getattr(measured.device, field) for field in MEASURED_FIELDS})
    calibration = measured.calibrated.model_copy(update={"collectives": (), "crowding": {}, "operation_crowding": {}})
    return hardware.model_copy(update={"device": device, "calibration": calibration})


def to_toml(values: dict[str, Any], prefix: str = "") -> str:
    """A nested table as TOML: plain values first, then tables, then lists of tables."""
    lines: list[str] = []
    later: list[tuple[str, Any]] = []
    for name, value in values.items():
        table = isinstance(value, dict) and set(value) != {"value", "source"}
        if table or (isinstance(value, list) and value and isinstance(value[0], dict)):
            later.append((name, value))
        elif value is not None:
            lines.append(f"{_key(name)} = {_literal(value)}")
    text = "\n".join(lines) + ("\n" if lines else "")
    for name, value in later:
        path = f"{prefix}{_key(name)}"
        if isinstance(value, dict):
            text += f"\n[{path}]\n" + to_toml(value, path + ".")
        else:
            text += "".join(f"\n[[{path}]]\n" + to_toml(item, path + ".") for item in value)
    return text


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _literal(name)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if "e" in repr(value) or "." in repr(value) else f"{value:.1f}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_literal(item)}" for name, item in value.items()) + " }"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
