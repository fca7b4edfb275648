"""What a trained model has made of its encoding: one file a question.

A probe is a function of a trained decoder and the settings that gives rows
{layer, head, quantity, x, value}; layer and head are −1 where the row has none. The study `probes`
runs every probe that applies on the trained models of the main figure.
"""
