"""What several JAX strategies share."""
