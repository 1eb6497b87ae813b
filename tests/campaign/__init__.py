"""Faults, signals, hostile input and damage by chance: what Paceline must survive, tried as long as there is time.

    cd tests && python -m campaign --minutes 30 [--seed 7] [--part kills] [--first 12] [--count 1]

Every case follows from the seed, its part and its number, so that any of them can be made again. It is here and not in
tools/ because its short forms are tests (`test_short_forms.py`), which `make test` runs.
"""
