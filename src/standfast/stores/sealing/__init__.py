"""Encryption of everything that a store keeps: values are sealed before they leave the process."""

from __future__ import annotations

from standfast.stores.sealing.keyring import Keyring
from standfast.stores.sealing.sealed_store import SealedStore

__all__ = ["Keyring", "SealedStore"]
