"""Keras models and optimizers, whatever backend Keras runs on."""
