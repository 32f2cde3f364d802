"""Flows in a FastAPI application: its own routes beside ours, in one process.

FastAPI does not open what is mounted in it, so it is given the lifespan. Serve it with ``uvicorn fastapi_mounted:api``.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.testclient import TestClient

import standfast as sf

shop = sf.Flow("shop", concurrency=sf.Queue(key="user"))


@shop.action
async def buy(request: sf.Request, item: str) -> int:
    """Put something into a basket. One user's requests are handled one after another."""
    request.session.append("basket", item)
    return len(await request.session.get("basket"))


ANN = sf.web.new_token()  # give it to Ann, and keep its digest only
tokens = sf.web.BearerTokens({sf.web.token_digest(ANN): sf.Principal(user="ann")})
flows = sf.App("sqlite:///shop.db", flows=[shop], authenticate=tokens)
api = FastAPI(lifespan=sf.web.lifespan(flows))
api.mount("/api", flows)


@api.get("/baskets/{user}")
async def basket(user: str) -> dict[str, str]:
    """Be a route of FastAPI's own."""
    return {"basket": f"{user}'s"}


@api.post("/gifts/{user}")
async def gift(user: str) -> dict[str, int]:
    """Send a request from a route: it waits its turn among all others of the user."""
    given = sf.Call(
        flow="shop", action="buy", inputs={"item": "a bow"}, session=f"basket-{user}", principal=sf.Principal(user=user)
    )
    handle = await flows.dispatcher.dispatch(given)
    return {"items": await handle.result()}


def main() -> None:
    """Call it as Ann would."""
    with TestClient(api, headers={"Authorization": f"Bearer {ANN}"}) as client:
        print("FastAPI says:", client.get("/baskets/ann").json()["basket"])
        bought = client.post("/api/flows/shop/buy", json={"item": "tea"}, headers={"Standfast-Session": "basket-ann"})
        print("bought:", bought.status_code, bought.json())
        print("with a gift:", client.post("/gifts/ann").json()["items"])
        print("refused with", client.post("/api/flows/shop/buy", json={"item": 3}).status_code)


if __name__ == "__main__":
    main()

# Output:
# FastAPI says: ann's
# bought: 200 1
# with a gift: 2
# refused with 422
