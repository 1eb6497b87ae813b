"""One framework's way to build the neutral layers and to train them; imported only inside a worker."""
