"""The pages, one file each, found by listing this folder: a new file has its route and its place in the navigation."""
