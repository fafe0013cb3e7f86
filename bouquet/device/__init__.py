"""What ``bouquet client`` and ``bouquet check`` need beside the client itself."""
