"""The one verdict that everything draws: how sure a difference is, and what is the best of several."""
