"""Who a server runs as: PostgreSQL refuses the superuser, and a user without a name."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534
# To the server it is an ordinary user, to the files it is still their owner.
NAMESPACE = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}"]
DROP = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@functools.cache
def ordinary() -> tuple[str, ...]:
    """Return what to put before a command so that it runs as an ordinary user."""
    if os.geteuid() in {user.pw_uid for user in pwd.getpwall()} - {0}:
        return ()
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    return tuple(DROP if tried.returncode else NAMESPACE)


def hand_over(folder: Path) -> None:
    """Give a folder to the user that `ordinary` commands run as."""
    if ordinary() == tuple(DROP):
        for path in [folder, *folder.rglob("*")]:
            shutil.chown(path, NOBODY, NOBODY)
