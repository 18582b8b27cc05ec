"""Shared by check-attribution-on-gpu.py and record-corpus.py."""
