"""Which of these cards can train this model as it is written, and what is the largest batch? python plan_cards.py model.keras"""

from __future__ import annotations

import sys

import memfit

CARDS = ("gtx-1080-ti", "t4", "rtx-3080", "rtx-4090", "a100-80gb")


def main(path: str, batch_size: int = 32) -> None:
    for card in CARDS:
        p = memfit.plan(path, batch_size, card=card)
        word = "as written" if p.as_asked.fits else "with changes" if p.fits else "no"
        print("%-12s %-13s %7.2f of %6.2f GiB, largest batch %d" % (card, word, p.peak_bytes / 2**30, p.memory_bytes / 2**30, p.max_batch))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
