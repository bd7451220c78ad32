"""The built-in commands, one module each, imported when called."""
