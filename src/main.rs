//! memspy: py-spy for GPU memory.

fn main() {}
