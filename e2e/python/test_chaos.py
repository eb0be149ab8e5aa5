"""A minute of chaos; `cargo xtask soak` makes hours of it."""
import random

import chaos


def test_chaos():
    """A new seed each time: it is in the output, and `chaos.py --seed` draws the same."""
    chaos.run(60, random.SystemRandom().randrange(1 << 32))
