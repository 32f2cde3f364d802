"""Start limits at work: lines in which runs stand from their start to their end."""
