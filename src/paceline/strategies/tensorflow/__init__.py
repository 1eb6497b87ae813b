"""The strategies of TensorFlow."""
