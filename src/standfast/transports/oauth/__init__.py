"""Being a resource server of OAuth: access tokens that somebody else has issued say who asks."""
