"""Figures of the notebooks, one a file: each takes numbers and words and gives a picture. They need matplotlib (extra `notebooks`)."""
