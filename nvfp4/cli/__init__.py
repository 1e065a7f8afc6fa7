"""The commands of `python -m nvfp4`, one a file."""
