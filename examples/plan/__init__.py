"""An analyst that plans first, over a SQLite database and CSV files."""
