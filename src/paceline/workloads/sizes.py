"""Published sizes of a model by name, and what options leave open."""

from collections.abc import Callable, Mapping

from paceline.errors import SpecError, nearest
from paceline.spec import Scalar
from paceline.workloads.layers import Shape

# An option that is this takes what the size, or the rest of the options, suggests.
AS_USUAL = 0
# What heads of today's models hold: numbers of one head, and the fewest.
USUAL_HEAD, SMALLEST_HEAD = 128, 64
Options = Mapping[str, Scalar]


def sized(
    workload: str, sizes: Mapping[str, Mapping[str, int]], derived: tuple[str, ...] = (), head: int | None = None
) -> Callable[[Options], dict[str, Scalar]]:
    """Fills options that are left open with those of the named size; an unknown size is refused.

    Those that are `derived` from the width stay open where another width than the size's is chosen. With `head`,
    heads that are left open are of about that width.
    """

    def settle(options: Options) -> dict[str, Scalar]:
        size = str(options["size"])
        if size not in sizes:
            raise SpecError(f"{workload} has no size {size!r}; {nearest(size, sizes)}")
        another_width = options["width"] != AS_USUAL
        usual = {name: value for name, value in sizes[size].items() if not (another_width and name in derived)}
        settled = {name: usual.get(name, value) if value == AS_USUAL else value for name, value in options.items()}
        if head is not None and settled["heads"] == AS_USUAL:
            settled["heads"] = usual_heads(int(settled["width"]), head)
        return settled

    return settle


def usual_heads(width: int, head: int = USUAL_HEAD) -> int:
    """The number of heads of width `head`; otherwise heads of 64 to 128 where the width divides into them."""
    counts = [count for count in range(1, width + 1) if width % count == 0]
    fitting = [count for count in counts if SMALLEST_HEAD <= width // count <= USUAL_HEAD]
    return min(fitting or counts, key=lambda count: abs(count - width / head))


def token_sample(options: Options) -> tuple[Shape, int]:
    """The shape of a sample of tokens, and the size of the vocabulary."""
    return (int(options["sequence"]),), int(options["vocabulary"])
