"""HTTP only: no SQL, no rules."""
