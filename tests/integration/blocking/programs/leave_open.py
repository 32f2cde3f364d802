"""Ends in one of several ways without closing anything: ``leave_open URL HOW``."""

from __future__ import annotations

import sys
import threading

from standfast import blocking


def main(url: str, how: str) -> None:
    """Take a lock, and end."""
    space = blocking.open(url, lease="600s")
    holding = space.mutex("m").hold()
    if how == "held":
        holding.__enter__()
        globals()["kept"] = holding
    elif how == "waiting":
        other = blocking.open(url)
        with other.mutex("m").hold():
            thread = threading.Thread(target=holding.__enter__, daemon=True)
            thread.start()
            while not space.explain("m").waiting:
                pass
            print("ended", flush=True)
            sys.exit(0)
    else:
        with holding:
            pass
    print("ended", flush=True)
    if how == "raised":
        raise KeyError(how)


if __name__ == "__main__":
    main(*sys.argv[1:])
