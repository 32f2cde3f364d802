"""Workflows in a Django application: an order is written, and its run is started when that is committed.

Django works without an event loop here, so it uses the names of ``standfast.blocking``.
"""

from __future__ import annotations

from functools import partial

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

import standfast as sf
from standfast import blocking

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
    ROOT_URLCONF=__name__,
)
django.setup()


class Order(models.Model):  # type: ignore[misc]  # Django has no types of its own
    """What a customer wants."""

    item = models.CharField(max_length=100)

    class Meta:
        """Where its table is."""

        app_label = "shop"

    def __str__(self) -> str:
        return f"an order of {self.item}"


@sf.step
def ship(item: str) -> str:
    """Do something outside of the database."""
    return f"{item} is on its way"


@sf.workflow
async def fulfil(ctx: sf.Context, item: str) -> str:
    """Ship an order."""
    return await ctx.step(ship, item)


engine = blocking.Engine("sqlite:///standfast.db", workflows=[fulfil])


def place_order(_: HttpRequest, item: str) -> HttpResponse:
    """Be a view: the order and what follows from it, or neither."""
    with transaction.atomic():
        order = Order.objects.create(item=item)
        transaction.on_commit(partial(engine.start, fulfil, item, id=f"order-{order.pk}"))
        if item == "moon":
            transaction.set_rollback(True)
            return HttpResponse(status=409)
    return HttpResponse(str(order.pk), status=202)


def show_order(_: HttpRequest, number: int) -> HttpResponse:
    """Be a view that waits a little for the outcome."""
    return HttpResponse(engine.result(f"order-{number}", timeout="10s"))


urlpatterns = [path("buy/<item>", place_order), path("orders/<int:number>", show_order)]


def main() -> None:
    """Call it as a browser would."""
    with connection.schema_editor() as schema:
        schema.create_model(Order)
    client = Client()
    with engine:
        print(client.get("/buy/tea").status_code, client.get("/orders/1").content.decode())
        print(client.get("/buy/moon").status_code, "runs:", len(engine.list().runs))
    connection.close()


if __name__ == "__main__":
    main()

# Output:
# 202 tea is on its way
# 409 runs: 1
