//! Tensors held in every way a program can hold them; each scene states its own truth.

use crate::support::scenes::differences_of_all;
use crate::support::versions::Environment;

/// All scenes in the default environment.
fn check_all(device: &str) {
    let wrong = differences_of_all(&Environment::default_one(), device);
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
#[ignore = "takes half a minute, and the same is seen on a GPU: scripts/test.sh --all runs it"]
fn every_scene_is_seen_as_it_says_on_the_cpu() {
    check_all("cpu");
}

#[test]
fn every_scene_is_seen_as_it_says_on_a_gpu() {
    check_all("cuda");
}
