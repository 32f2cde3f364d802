"""A Django program that starts runs in its own transactions, and steps that use its ORM's connection."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.parse

import django
from django.conf import settings
from django.db import connection, transaction

import standfast as sf
from standfast import blocking
from standfast.errors import InvalidArgumentError, RunNotFoundError

SERVER, URL, SPACE = sys.argv[1:]
_parts = urllib.parse.urlsplit(SERVER)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": _parts.hostname,
            "PORT": _parts.port,
            "USER": _parts.username,
            "PASSWORD": _parts.password,
            "NAME": _parts.path.removeprefix("/"),
        }
    }
)
django.setup()


def note(what: str) -> None:
    """Have an effect."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (space, what) VALUES (%s, %s)", [SPACE, what])


@sf.step
def charge(order: str) -> str:
    """Charge for an order, and record that in the same transaction."""
    try:
        with transaction.atomic():
            note(f"charged {order}")
            sf.current_step().record_with(connection, f"{order} is charged")
    finally:
        connection.close()
    return ""


@sf.workflow
async def fulfil(ctx: sf.Context, order: str) -> str:
    """Do what an order needs."""
    return await ctx.step(charge, order)


def place_order(engine: blocking.Engine, order: str, *, fails: bool = False) -> None:
    """Be a view."""
    with transaction.atomic():
        note(f"placed {order}")
        engine.start(fulfil, order, id=order, connection=connection)
        if fails:
            raise LookupError(order)


def main() -> None:
    """Place orders, and print what became of them."""
    found: dict[str, object] = {}
    with blocking.Engine(URL, namespace=SPACE, workflows=[fulfil]) as engine:
        place_order(engine, "order-1")
        found["committed"] = engine.result("order-1", timeout="20s")
        with contextlib.suppress(LookupError):
            place_order(engine, "order-2", fails=True)
        try:
            engine.get("order-2")
        except RunNotFoundError:
            found["rolled back"] = True
        try:
            engine.start(fulfil, "order-3", connection=connection)
        except InvalidArgumentError as problem:
            found["autocommit"] = problem.problem
    connection.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
