"""Public samples on the server, and what models say of them."""
