"""From a question to an answer that can be run: `scripts` writes training scripts that need no Paceline."""
