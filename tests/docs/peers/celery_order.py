"""Executes the order of the page in a worker of Celery, whose broker is the memory of this process."""

from __future__ import annotations

import order
from celery.contrib.testing.worker import start_worker

if __name__ == "__main__":
    with start_worker(order.app, perform_ping_check=False, loglevel="error"):
        order.sent.get(timeout=20)
        print(order.sent.parent.get(timeout=20))
