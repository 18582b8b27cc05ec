//! Tensors and autograd graphs read from outside against what PyTorch says of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(unreachable_pub, missing_docs, reason = "support is a module of each test binary")]

mod support;

use support::tensors::check;
use support::versions::Environment;

#[test]
fn tensors_and_graphs_are_what_pytorch_says_on_the_cpu() {
    check(&Environment::default_one(), "cpu");
}

#[test]
fn tensors_and_graphs_are_what_pytorch_says_on_a_gpu() {
    check(&Environment::default_one(), "cuda");
}
