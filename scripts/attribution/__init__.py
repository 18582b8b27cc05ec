"""What check-attribution-on-gpu.py and record-corpus.py share."""
