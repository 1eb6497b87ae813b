"""What is done between steps and is in no epoch's time: checkpoints, looks at the test set."""
