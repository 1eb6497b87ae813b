"""The commands of iproute2 that connect namespaces and shape what they send; pure text."""

from paceline.link import NetworkLink

# The name of the interface in each process's namespace, and of the switch that all of them are connected to.
INTERFACE, SWITCH = "link0", "switch"
# Namespaces see nobody else's addresses, so any private range will do.
SUBNET_BITS = 16
_FIRST_OCTETS, _MOST_HOSTS = "10.77", 250
# What a bucket lets pass at once: a millisecond of the link, so that short messages take their time too, and no less
# than two frames.
BURST_SECONDS, LEAST_BURST_BYTES = 1e-3, 3_028
FRAME_BYTES = 1_514
# Of the link's time: a piece that a relay carries.
RELAYED_PIECE_SECONDS = 2e-3
# The kernel's own limit on what it hands an interface in one piece.
MOST_PIECE_BYTES = 65_536
# What a switch holds for a port that several others send to; more is dropped.
SWITCH_BUFFER_SECONDS = 0.05
LEAST_BUFFER_BYTES = 256_000


def address(rank: int) -> str:
    """The address of a process in its own namespace."""
    third, fourth = divmod(rank, _MOST_HOSTS)
    return f"{_FIRST_OCTETS}.{third}.{fourth + 1}"


def burst_bytes(link: NetworkLink) -> int:
    """The most bytes that leave at once."""
    return max(LEAST_BURST_BYTES, round(link.bytes_per_second * BURST_SECONDS))


def piece_bytes(link: NetworkLink, relayed: bool = False) -> int:
    """The largest piece that the kernel may hand the interface: half a burst, but never less than a frame.

    A relay times every piece by itself and is the less busy the larger they are.
    """
    if relayed:
        wanted = max(4 * FRAME_BYTES, round(link.bytes_per_second * RELAYED_PIECE_SECONDS))
    else:
        wanted = max(FRAME_BYTES, burst_bytes(link) // 2)
    return min(MOST_PIECE_BYTES, wanted)


def buffer_bytes(link: NetworkLink) -> int:
    """What waits at a port of the switch at most."""
    return max(LEAST_BUFFER_BYTES, round(link.bytes_per_second * SWITCH_BUFFER_SECONDS))


def mac_address(rank: int) -> bytes:
    """A locally administered address that ends in the process's number."""
    return bytes((2, 0, 0, 0, *divmod(rank, 256)))


def switch_commands() -> list[str]:
    """Lines for `ip` that make the switch in its namespace."""
    return [f"link add name {SWITCH} type bridge", f"link set dev {SWITCH} up"]


def port_name(rank: int) -> str:
    """The switch's end of a process's cable."""
    return f"port{rank}"


def cable_commands(rank: int, switch_namespace: str) -> list[str]:
    """Lines for `ip` in the process's namespace: a cable whose other end is in the switch's namespace."""
    return [f"link add name {INTERFACE} type veth peer name {port_name(rank)} netns {switch_namespace}"]


def interface_commands(rank: int, link: NetworkLink, relayed: bool = False) -> list[str]:
    """Lines for `ip` that give the interface of a process its address and bring it up."""
    piece = piece_bytes(link, relayed)
    return [
        "link set dev lo up",
        f"link set dev {INTERFACE} address {mac_address(rank).hex(':')}",
        f"link set dev {INTERFACE} gso_max_size {piece}",
        f"link set dev {INTERFACE} gso_max_segs {max(1, piece // FRAME_BYTES)}",
        f"address add {address(rank)}/{SUBNET_BITS} dev {INTERFACE}",
        f"link set dev {INTERFACE} up",
    ]


def port_commands(rank: int) -> list[str]:
    """Lines for `ip` in the switch's namespace that plug a cable in."""
    return [f"link set dev {port_name(rank)} master {SWITCH} up"]


def sending_rules(link: NetworkLink) -> list[str]:
    """Lines for `tc` that shape what a process sends."""
    return [f"qdisc add dev {INTERFACE} root {_bucket(link)}"]


def receiving_rules(rank: int, link: NetworkLink) -> list[str]:
    """Lines for `tc` that shape what a process receives, at its port of the switch, with the delay before it."""
    port = port_name(rank)
    if not link.delay_seconds:
        return [f"qdisc add dev {port} root {_bucket(link)}"]
    delay_us, packets = round(link.delay_seconds * 1e6), _packets_under_way(link)
    return [
        f"qdisc add dev {port} root handle 1: netem delay {delay_us}us limit {packets}",
        f"qdisc add dev {port} parent 1:1 handle 10: {_bucket(link)}",
    ]


def _bucket(link: NetworkLink) -> str:
    rate_bits, limit = round(link.bits_per_second), buffer_bytes(link)
    return f"tbf rate {rate_bits}bit burst {burst_bytes(link)} limit {limit}"


def _packets_under_way(link: NetworkLink) -> int:
    """Frames that the delay and a full buffer hold together, the smallest of them acknowledgements."""
    held_bytes = link.bytes_per_second * link.delay_seconds + buffer_bytes(link)
    return 2 * round(held_bytes / FRAME_BYTES) + 1_000
