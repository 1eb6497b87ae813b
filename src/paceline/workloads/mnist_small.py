"""The small CNN of Ramkeesoon's study: 402,442 parameters on 28 x 28 images, as the paper states."""

from paceline.workloads.base import Workload
from paceline.workloads.layers import Conv, Dense, Flatten, MaxPool

WORKLOAD = Workload(
    name="mnist-small",
    about="1 convolution, 2 dense layers; 402,442 parameters on MNIST",
    dataset="mnist-5k",
    layers=lambda _options, _shape, classes: (Conv(32), MaxPool(), Flatten(), Dense(64, relu=True), Dense(classes)),
)
