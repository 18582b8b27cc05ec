//! Tensors, names and graphs on every PyTorch and CPython in `scripts/torch-versions.txt`.

use std::time::Instant;

use crate::support::scenes::differences_of_all;
use crate::support::{tensors, versions};

#[test]
#[ignore = "takes half a minute, and the same is seen with one PyTorch: scripts/test.sh --all runs it"]
fn every_scene_is_seen_as_it_says_with_every_pytorch() {
    let mut wrong = Vec::new();
    for environment in versions::environments() {
        for device in environment.devices_for_scenes() {
            let start = Instant::now();
            let differences = differences_of_all(&environment, device);
            let (name, took) = (&environment.name, start.elapsed());
            eprintln!("scenes with {name} on {device}: {} wrong, {took:.0?}", differences.len());
            wrong.extend(differences);
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
#[ignore = "takes long, and holders_scenes sees one PyTorch: scripts/test.sh --all runs it"]
fn every_tensor_and_graph_is_what_each_pytorch_says() {
    for environment in versions::environments() {
        for device in environment.devices() {
            tensors::check(&environment, device);
        }
    }
}
