"""What is read off the machine while a run goes on."""
