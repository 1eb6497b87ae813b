"""What is done between steps and is in no epoch's time: checkpoints, evaluations on the way to a target."""
