"""What shells ask when Tab is pressed."""
