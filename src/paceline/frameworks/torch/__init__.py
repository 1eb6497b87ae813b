"""What several PyTorch strategies share: model, training step, optimizer, process group, instrumentation."""
