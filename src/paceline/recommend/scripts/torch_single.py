"""PyTorch on one device."""

from paceline.recommend.scripts.base import Script
from paceline.recommend.scripts.torch_text import alone

SCRIPT = Script(name="torch-single", about="PyTorch on one device", start=alone)
