"""The agent: one small process on each machine of a fleet, which starts its ranks there and relays what they say.

`python -m paceline.runs.agent` is that process; an engine (`runs/launchers/`) starts it and talks to it in frames.
"""
