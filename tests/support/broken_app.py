"""A module that can't be imported."""

raise ValueError("no settings")
