"""Cards that are rented for this work: memory, speed, price. Read "8xH20" as hardware."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from concisecli.records import UsageError

PRICES_OF = "list prices on demand, dollars an hour, first half of 2026"


@dataclass(frozen=True, slots=True)
class Card:
    """`memory` in GiB as the driver reports it, `tflops` dense bfloat16 with float32 sums, `bandwidth` of its memory in
    GB/s, all as the maker's data sheet says; `price` from the cheapest to the dearest list."""

    name: str
    memory: float
    tflops: float
    bandwidth: float
    price: tuple[float, float]


CARDS = (
    Card("A100-40", 40.0, 312, 1555, (0.70, 3.00)),
    Card("A100-80", 80.0, 312, 2039, (0.80, 3.00)),
    Card("A800-80", 80.0, 312, 2039, (0.80, 3.00)),
    Card("H100", 79.6, 989, 3350, (2.00, 5.00)),
    Card("H100-PCIe", 79.6, 756, 2000, (1.90, 3.50)),
    Card("H800", 79.6, 989, 3350, (2.00, 5.00)),
    Card("H200", 140.4, 989, 4800, (2.50, 7.00)),
    Card("H20", 95.6, 148, 4000, (1.00, 2.50)),
    Card("GH200", 95.6, 989, 4000, (1.50, 3.50)),
    Card("B200", 179.1, 2250, 8000, (3.50, 8.00)),
    Card("L40S", 45.0, 362, 864, (0.70, 2.00)),
    Card("L4", 22.5, 121, 300, (0.40, 0.90)),
    Card("A10G", 22.5, 70, 600, (0.50, 1.30)),
    Card("A40", 45.0, 150, 696, (0.35, 1.30)),
    Card("RTX-3090", 24.0, 71, 936, (0.15, 0.45)),
    Card("RTX-4090", 24.0, 165, 1008, (0.30, 0.80)),
    Card("RTX-5090", 31.8, 209, 1792, (0.50, 1.10)),
    Card("RTX-6000-Ada", 48.0, 364, 960, (0.60, 1.30)),
    Card("MI300X", 191.7, 1307, 5300, (1.50, 5.00)),
)


@dataclass(frozen=True, slots=True)
class Hardware:
    card: Card
    count: int

    @property
    def name(self) -> str:
        return f"{self.count} x {self.card.name}"


def parse_hardware(text: str, price: str | None = None) -> Hardware:
    """ "8xH20", "4 * a100-80gb" or "4090"; `price` ("1.2" or "1.2-2") replaces the table's. Raises UsageError."""
    found = re.fullmatch(r"\s*(?:(\d+)\s*[x*×]\s*)?(.+?)\s*", text, re.IGNORECASE)
    count = int(found[1] or 1) if found else 0
    if not found or count < 1:
        raise UsageError(f"--gpu {text}: write it as 8xH100, or as H100 for one")
    card = card_named(found[2], text)
    return Hardware(replace(card, price=parse_price(price)) if price else card, count)


def card_named(name: str, text: str) -> Card:
    wanted = _plain(name)
    by_name = {_plain(card.name): card for card in CARDS}
    if wanted in by_name:
        return by_name[wanted]
    near = [c.name for plain, c in by_name.items() if plain.startswith(wanted)] if wanted else []
    near = near or [by_name[p].name for p in difflib.get_close_matches(wanted, by_name, 3, 0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(c.name for c in CARDS)}"
    raise UsageError(f"--gpu {text}: there is no card '{name}' in the table; {hint}")


def _plain(name: str) -> str:
    """ "NVIDIA RTX 4090", "A100 80GB" and "a100-80gb-sxm" as the table spells them."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for word in ("nvidia", "amd", "geforce", "instinct", "rtx", "sxm5", "sxm4", "sxm"):
        plain = plain.replace(word, "")
    return re.sub(r"gi?b$", "", plain)


def parse_price(text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        prices = float(low), float(high if dash else low)
    except ValueError:
        raise UsageError(f"--price {text}: give dollars an hour and card, such as 1.8 or 1.8-2.5") from None
    if not 0 <= prices[0] <= prices[1]:
        raise UsageError(f"--price {text}: the lower price comes first")
    return prices
