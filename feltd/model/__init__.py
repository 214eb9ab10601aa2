"""The nouns as msgspec Structs, shared by rules, HTTP and the worker SDK."""
