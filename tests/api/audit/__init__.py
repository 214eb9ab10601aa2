"""The audit chain over HTTP."""
