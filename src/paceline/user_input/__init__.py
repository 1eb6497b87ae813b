"""What users write: paths, TOML files, and texts made fit to print."""
