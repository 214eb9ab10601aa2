"""SQLite and nothing else: connections, transactions, the writer, migrations. Knows no noun."""
