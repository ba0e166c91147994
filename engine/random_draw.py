"""Random draws by counter: one depends on its place alone, and not on what was drawn before.

Philox4x64-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011), as numpy has it
as well; there, to make a generator for one draw takes more than twice as long as the draw here.
"""

from __future__ import annotations

_WORD = 2**64 - 1
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def uniform_draw(seed: int, branch: int, position: int) -> float:
    """A number in [0, 1), the same for the same arguments.

    seed: its lowest 128 bits are the key. branch, position: from 0 to 2**64 - 1; each branch has a
    stretch of 2**64 counters to itself. The first draw of numpy's Philox of this key and counter.
    """
    key_0, key_1 = seed & _WORD, seed >> 64 & _WORD
    counter = (branch << 64 | position) + 1
    a, b, c, d = counter & _WORD, counter >> 64 & _WORD, counter >> 128, 0
    for _ in range(10):
        product_a, product_c = _FACTORS[0] * a, _FACTORS[1] * c
        a, b = product_c >> 64 ^ b ^ key_0, product_c & _WORD
        c, d = product_a >> 64 ^ d ^ key_1, product_a & _WORD
        key_0, key_1 = (key_0 + _KEY_STEPS[0]) & _WORD, (key_1 + _KEY_STEPS[1]) & _WORD
    return (a >> 11) * 2.0**-53
