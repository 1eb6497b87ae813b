"""What makes training the same on any number of workers where a model's layers would not: batch norms and dropout."""
