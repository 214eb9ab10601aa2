"""Where attempts run: each runtime enforces a claim's runtime policy, or refuses it."""
