"""``python -m standfast``: the same as the command ``standfast``."""

from __future__ import annotations

from standfast.cli import main

if __name__ == "__main__":
    main()
