//! Tensors and autograd graphs, read from outside and compared with PyTorch's view.

use crate::support::everything_is_there;
use crate::support::target::Target;
use crate::support::tensors::{check, compare, read_damaged};
use crate::support::versions::Environment;

#[test]
#[ignore = "takes half a minute, and the same is seen on a GPU: scripts/test.sh --all runs it"]
fn tensors_and_graphs_are_what_pytorch_says_on_the_cpu() {
    check(&Environment::default_one(), "cpu");
}

#[test]
fn tensors_and_graphs_are_what_pytorch_says_on_a_gpu() {
    check(&Environment::default_one(), "cuda");
}

#[test]
fn with_another_malloc_nothing_is_missed() {
    for library in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let library = std::path::Path::new(&folder).join(library);
        assert!(
            library.exists(),
            "{}: install libjemalloc2, libtcmalloc-minimal4",
            library.display()
        );
        let mut command = crate::support::sim::command("tensors_truth.py", &["--device", "cuda"]);
        command.env("LD_PRELOAD", &library);
        compare(&Target::start(command), false);
    }
}

#[test]
fn damaged_memory_makes_errors_not_panics() {
    let target = Environment::default_one().start("tensors_truth.py", &["--device", "cpu"]);
    let seeds = if everything_is_there() { 24 } else { 6 };
    let read: Vec<usize> = (1..=seeds).map(|seed| read_damaged(&target, seed)).collect();
    assert!(read.iter().any(|count| *count > 0), "{read:?}");
    assert!(read.iter().any(|count| *count != read[0]), "{read:?}");
}
