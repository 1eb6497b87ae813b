"""Numbers that others published, with their sources, beside what is predicted for the same runs."""
