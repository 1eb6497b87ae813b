"""What runs as a strategy does and is none to choose: no catalogue lists it."""
