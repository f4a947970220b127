"""Where sessions live: the storage contract, and the memory, JSONL and SQLite stores."""
