"""The large CNN of Ramkeesoon's study: 4,104,202 parameters on 28 x 28 images.

The paper gives 2,636,554 for the layers that it lists, but no padding or pooling of those layers has that many; "same"
padding, which gives the small model's 402,442 exactly, gives 4,104,202 here.
"""

from paceline.workloads.base import Workload
from paceline.workloads.layers import Conv, Dense, Flatten, MaxPool

WORKLOAD = Workload(
    name="mnist-large",
    about="3 convolutions, 3 dense layers; 4,104,202 parameters on MNIST",
    dataset="mnist-5k",
    layers=lambda _options, _shape, classes: (
        *(layer for channels in (128, 256, 512) for layer in (Conv(channels), MaxPool())),
        Flatten(),
        Dense(512, relu=True),
        Dense(512, relu=True),
        Dense(classes),
    ),
)
