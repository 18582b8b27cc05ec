//! Targets on the simulated CUDA device.
