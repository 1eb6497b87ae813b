"""How a process leaves its group while one of gloo's threads still holds it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

# The defaults of a function are released from the last to the first: `Held` keeps gloo's thread there until the main
# thread has left the group, then the thread drops its reference to the group, then it says that it got past that.
LEAVES_FIRST = """
import os, threading
import torch, torch.distributed as dist
from paceline.frameworks.torch.group import leave_group

left, released = threading.Event(), threading.Event()

class Held:
    def __del__(self):
        assert left.wait(60) and threading.current_thread() is not threading.main_thread()

class Released:
    def __del__(self):
        released.set()

def send():
    def callback(future, last=Released(), group=dist.group.WORLD, first=Held()):
        return future.value()[0]
    return dist.all_reduce(torch.ones(4), async_op=True).get_future().then(callback)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
send().wait()
leave_group()
assert not dist.is_initialized()
left.set()
assert released.wait(60)
os._exit(0)
"""


def test_a_process_that_left_its_group_is_not_aborted_when_a_callback_drops_it_later() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES_FIRST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
