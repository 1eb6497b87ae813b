"""How a process leaves its group while one of gloo's threads still holds it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

# The defaults of a function are released from the last to the first: `Held` keeps gloo's thread there until the main
# thread has left the group, then the thread drops its reference to the group, then it says that it got past that.
# A sum that is ready before its callback is added is called back by the main thread, which shows nothing: another one
# is asked for.
LEAVES_FIRST = """
import os, threading
import torch, torch.distributed as dist
from paceline.frameworks.torch.group import leave_group

left = threading.Event()

class Held:
    def __del__(self):
        if threading.current_thread() is not threading.main_thread():
            assert left.wait(60)

class Released:
    def __init__(self):
        self.event = threading.Event()
    def __del__(self):
        self.event.set()

def send():
    called_back_by, released, given_up = [], Released(), threading.Event()
    event = released.event
    def callback(future, last=released, group=dist.group.WORLD, first=Held()):
        called_back_by.append(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            assert given_up.wait(60)
        return future.value()[0]
    done = dist.all_reduce(torch.ones(1 << 20), async_op=True).get_future().then(callback)
    del callback, released
    given_up.set()
    done.wait()
    return event, called_back_by[0] is not threading.main_thread()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
released, by_gloo = send()
while not by_gloo:
    released, by_gloo = send()
leave_group()
assert not dist.is_initialized()
left.set()
assert released.wait(60)
os._exit(0)
"""


def test_a_process_that_left_its_group_is_not_aborted_when_a_callback_drops_it_later() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES_FIRST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
