"""What several TensorFlow strategies share."""
