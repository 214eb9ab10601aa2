"""The verbs of the wire as methods: a file a noun, a method a verb."""
