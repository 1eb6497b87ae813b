"""Links of a stated rate and delay on one machine: each process of a run in a network namespace of its own.

`network.py` starts a keeper for a run; `keeper.py` is that process, which makes the namespaces (`namespaces.py`),
connects and shapes them (`shaping.py`), and carries every frame itself where a delay needs it (`relay.py`).
"""
