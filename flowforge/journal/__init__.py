"""What a run leaves behind: a SQLite file from which it can be resumed and read."""
