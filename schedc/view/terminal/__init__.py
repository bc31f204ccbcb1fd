"""What commands show: tables, pictures in the terminal, JSON, progress."""
