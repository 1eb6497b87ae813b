"""The lengths of Sandblaster's messages, in numbers: what its processes send and what its footprint counts."""

# A worker's word: what it wants or has, the step, the portion, its part of the loss.
WORKER_WORD = 4
# The answer: a portion, the end of the step or whether a result counts; whether new parameters come; the loss.
ANSWER = 3
# A command begins with what to do, where to remember, how far to go and whether to go at all.
COMMAND_HEAD = 4
# Dot products of one server: single numbers, then five for every pair in the history.
SINGLE_PRODUCTS, PAIR_PRODUCTS = 6, 5


def command_length(history: int) -> int:
    """The head, then a coordinate for each vector of the basis: steps, gradient changes, the gradient."""
    return COMMAND_HEAD + 2 * history + 1


def reply_length(history: int) -> int:
    """The largest gradient and all dot products."""
    return 1 + SINGLE_PRODUCTS + PAIR_PRODUCTS * history
