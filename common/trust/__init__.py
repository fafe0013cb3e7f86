"""The app as a bundle, its signature, and public keys."""
