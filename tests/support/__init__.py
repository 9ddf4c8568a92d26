"""Worlds that tests act in: small stand-ins for what the project talks to, each with the rules of the real thing."""
