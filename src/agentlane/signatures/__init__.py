"""Functions as tools see them: their parameters as a JSON Schema, and the check of a model's arguments against it."""
