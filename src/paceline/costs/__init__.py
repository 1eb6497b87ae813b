"""What training computes, sends and holds, in numbers alone: no framework is imported here."""
