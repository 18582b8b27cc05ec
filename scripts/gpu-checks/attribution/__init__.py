"""Attribution against PyTorch's own history: the check, and what scripts/record-corpus.py needs."""
