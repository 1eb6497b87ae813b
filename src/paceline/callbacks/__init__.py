"""What a training script says of its steps: two lines of code, a callback, or nothing at all.

`paceline run train.py` starts the script; started in any other way it runs as if these calls were not there. Nothing
here is imported that a script may not have.
"""

from paceline.callbacks.accelerate import accelerate_tracker
from paceline.callbacks.keras import keras_callback
from paceline.callbacks.lightning import lightning_callback
from paceline.callbacks.steps import step, watch
from paceline.callbacks.trainer import trainer_callback

__all__ = ["accelerate_tracker", "keras_callback", "lightning_callback", "step", "trainer_callback", "watch"]
