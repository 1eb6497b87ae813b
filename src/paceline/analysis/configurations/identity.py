"""What configurations share that differ in some fields only."""

import hashlib
from collections.abc import Hashable, Set

from paceline.spec import RunSpec

IDENTITY_BYTES = 16


def identity_except(spec: RunSpec, names: Set[str]) -> Hashable:
    """A value that runs share which differ in nothing but the named fields."""
    inner = tuple(
        None if name in names else tuple(sorted(getattr(spec, name).items())) for name in ("options", "knobs")
    )
    text = spec.model_dump_json(exclude={*names, "options", "knobs"})
    # Of thousands of configurations only the digests are kept.
    return hashlib.blake2b(text.encode(), digest_size=IDENTITY_BYTES).digest(), inner


def any_seed(spec: RunSpec) -> Hashable:
    """A value that runs share which differ in nothing but their seed."""
    if spec.model is not None or spec.script is not None:
        return spec.model_copy(update={"seed": 0}).key()
    return identity_except(spec, {"seed", "timeout_seconds", "collective_timeout_seconds"})
