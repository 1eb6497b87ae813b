"""The strategies of JAX."""
