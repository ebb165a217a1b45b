"""Programs of developers: the server imports none of them, and no distribution has them."""
