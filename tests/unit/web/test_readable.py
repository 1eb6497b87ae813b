"""Settings and surroundings are shown in words."""

from paceline.web.readable import readable


def test_fields_are_words_and_empty_ones_are_left_out() -> None:
    fields = {"optimizer.lr": 0.1, "pin_memory": False, "machines": [], "seed": 0, "knobs": {}, "cut": None}
    assert readable(fields) == [("optimizer lr", "0.1"), ("pin memory", "no"), ("seed", "0")]
    surroundings = {"memory_bytes": 16 * 10**9, "cores": [0, 1], "frameworks": {"torch": "2.13", "jax": "0.10"}}
    assert readable(surroundings) == [("memory", "16 GB"), ("cores", "0, 1"), ("frameworks", "torch 2.13, jax 0.10")]
