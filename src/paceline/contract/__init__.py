"""What a strategy is: its declaration, what a process of a run is given, and what it hands back."""
