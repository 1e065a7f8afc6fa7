"""Modules under former names, which pickles of whole models hold. nvfp4/__init__.py adds this folder to the package's
path, so that nvfp4.experts_stack is experts_stack.py here."""
