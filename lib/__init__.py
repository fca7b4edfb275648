"""Positional encodings: the mathematics, the models, the studies, and the claims they test."""
