"""Rules as tables: what a code, a class or a message means."""
