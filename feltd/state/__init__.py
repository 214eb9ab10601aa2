"""Records of a tenant, the log of their changes, and what starts work by itself.

Rules alone, as in mesh: no clock, no randomness, nothing but the open transaction.
"""
