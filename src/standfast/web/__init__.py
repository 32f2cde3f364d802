"""What brings requests in over a network. Transports only translate: everything is decided by the dispatcher."""

from __future__ import annotations
