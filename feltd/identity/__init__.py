"""Rules of identity: keys, grants, principals."""
