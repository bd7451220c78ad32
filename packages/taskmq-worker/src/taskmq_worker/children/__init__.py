"""The pool `processes`: child processes, and how the worker talks to them."""
