"""How tables are laid out on a terminal."""
