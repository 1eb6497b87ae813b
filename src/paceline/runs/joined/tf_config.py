"""TF_CONFIG, as Vertex AI and a TFJob of Kubernetes set it: https://www.tensorflow.org/guide/distributed_training."""

import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from paceline.errors import UserError
from paceline.runs.joined import Membership, Reader

# Ranks in this order: the first of the chief, or of the workers, leads.
ORDER = ("chief", "master", "worker", "ps")
HERE = ("localhost", "127.0.0.1")


class _Task(BaseModel):
    type: str
    index: Annotated[int, Field(ge=0)] = 0


class _Config(BaseModel):
    """What Paceline needs of it; there is more."""

    cluster: dict[str, list[str]]
    task: _Task


def read(environment: Mapping[str, str]) -> Membership | None:
    """Addresses in the order of ranks; nobody is at the first one yet."""
    text = environment.get("TF_CONFIG")
    if text is None:
        return None
    try:
        config = _Config.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        raise UserError(f"TF_CONFIG is {text!r}, which has no cluster and task; see what the launcher sets") from None
    task, members = config.task, [(kind, index) for kind in ORDER for index in range(len(config.cluster.get(kind, [])))]
    if (task.type, task.index) not in members:
        raise UserError(
            f"TF_CONFIG says that this is {task.type} {task.index}, which takes no part in training; join from "
            f"{', '.join(kind for kind in ORDER if kind in config.cluster) or 'workers'} only"
        )
    addresses = [address for kind in ORDER for address in config.cluster.get(kind, [])]
    host, _, port = addresses[0].rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"TF_CONFIG names {addresses[0]!r}, which is no host:port; see what the launcher sets")
    return Membership(
        launcher="TF_CONFIG",
        rank=members.index((task.type, task.index)),
        world=len(members),
        job=" ".join(addresses),
        host=host,
        port=int(port),
        on_one_machine=all(address.rpartition(":")[0] in HERE for address in addresses),
    )


READER = Reader("TF_CONFIG", "paceline join with TF_CONFIG set", read, place=3)
