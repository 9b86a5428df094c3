"""Mathematical equality of answers: extract, clean, read the shape, compare exactly."""
