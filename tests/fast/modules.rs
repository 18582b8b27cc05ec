//! `--by module`: whose call allocated, what is not known, and alike layers together.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use memspy::model::{AllocationSite, TensorCategory};

use crate::analysis_script::{MIB, Script, owners};
use crate::exact_script::Probed;
use crate::trace_support;

/// Two layers with two linear modules each, and what no module's call allocates.
fn recording(folder: &Path) {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.begin();
    s.malloc(0, 0, 5 * MIB);
    s.enter_module(0, Some("Model"));
    for layer in 0..2 {
        s.enter_module(0, Some(&format!("layers.{layer}")));
        for (child, size) in [("q_proj", 10), ("o_proj", 20)] {
            s.enter_module(0, Some(&format!("layers.{layer}.{child}")));
            s.enter(0, "forward", 125);
            let temporary = s.malloc(0, 0, MIB);
            s.malloc(0, 0, (size + layer) * MIB);
            s.release(0, temporary);
            s.leave(0);
            s.leave(0);
        }
        s.leave(0);
    }
    s.leave(0);
    s.enter_module(0, None);
    s.malloc(0, 0, 2 * MIB);
    s.leave(0);
    // A node of the first layer's forward call allocates its gradient.
    s.enter_module(0, Some("layers.0.q_proj"));
    let forward = s.site(0).stack;
    s.leave(0);
    let site = AllocationSite {
        source: memspy::model::StackSource::Backward,
        node: Some("AddmmBackward0".into()),
        forward,
        ..s.site(0)
    };
    s.malloc_at(0, 0, 3 * MIB, site);
    s.finish();
    std::fs::write(folder.join("a.bin"), trace_support::write(&s.records)).unwrap();
}

fn memspy(folder: &Path, words: &[&str]) -> (i32, String, String) {
    let done = Command::new(cargo_bin("memspy")).args(words).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

fn rows(folder: &Path, words: &[&str]) -> Vec<String> {
    let (code, out, err) = memspy(folder, words);
    assert_eq!(code, 0, "{err}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    out.lines().filter(|line| line.contains('%')).map(words).collect()
}

#[test]
fn alike_layers_are_one_row_that_opens() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    assert_eq!(
        rows(folder.path(), &["lines", "a.bin", "--by", "module"]),
        [
            "41.0 MiB 56.9 % 43.0 MiB layers[*].o_proj (2 modules)",
            "24.0 MiB 33.3 % 26.0 MiB layers[*].q_proj (2 modules)",
            "5.00 MiB 6.9 % 5.00 MiB [outside modules]",
            "2.00 MiB 2.8 % 2.00 MiB [module not known]",
        ]
    );
    assert_eq!(
        rows(folder.path(), &["lines", "a.bin", "--by", "module", "--depth", "2"])[..2],
        [
            "33.0 MiB 45.8 % 35.0 MiB layers.0 (2 modules)",
            "32.0 MiB 44.4 % 34.0 MiB layers.1 (2 modules)"
        ]
    );
}

#[test]
fn a_picture_nests_the_members_of_a_container() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let picture = ["flame", "a.bin", "--by", "module", "-o", "-"];
    let (_, out, _) = memspy(folder.path(), &[&picture[..], &["-f", "collapsed"]].concat());
    let expected = [
        ("[module not known]", 2),
        ("[outside modules]", 5),
        ("layers[*];0;o_proj", 20),
        ("layers[*];0;q_proj", 13),
        ("layers[*];1;o_proj", 21),
        ("layers[*];1;q_proj", 11),
    ];
    let expected: Vec<String> =
        expected.iter().map(|(path, mib)| format!("{path} {}", mib * MIB)).collect();
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
    let (_, svg, _) = memspy(folder.path(), &picture);
    assert!(svg.contains("GPU memory by module, at its peak: 72.00 MiB on GPU 0"));
    assert!(svg.contains("<title>layers[*] · 65.0 MiB · 90.3 %"));
    let (_, all, _) =
        memspy(folder.path(), &[&picture[..], &["-f", "collapsed", "--total-allocated"]].concat());
    assert!(all.contains(&format!("layers[*];1;o_proj {}\n", 22 * MIB)), "{all}");
}

#[test]
fn without_modules_it_says_how_to_record_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.begin();
    s.malloc(0, 0, MIB);
    s.finish();
    std::fs::write(folder.path().join("a.bin"), trace_support::write(&s.records)).unwrap();
    for command in ["lines", "flame"] {
        let (code, out, err) = memspy(folder.path(), &[command, "a.bin", "--by", "module"]);
        assert_eq!((code, &*out, err.lines().count()), (1, "", 1), "{err}");
        assert!(err.contains("tells no modules") && err.contains("--owners"), "{err}");
    }
    let (code, _, err) = memspy(folder.path(), &["lines", "a.bin", "--depth", "2"]);
    assert!(code == 1 && err.contains("--by module"), "{err}");
}

#[test]
fn without_stacks_of_modules_the_owners_tell_them() {
    use TensorCategory::{Gradient, OptimizerState, Other, Parameter};
    let folder = tempfile::tempdir().unwrap();
    let mut s = Script::with_first_allocation();
    let held = [
        (Parameter, "layers.0.q_proj.weight", 6),
        (Gradient, "layers.0.q_proj.weight", 6),
        (OptimizerState, "AdamW.exp_avg[layers.1.q_proj.weight]", 12),
        (Other, "main: cache", 3),
    ];
    s.records.push(owners(s.now, &held));
    s.tick();
    s.end();
    std::fs::write(folder.path().join("a.bin"), trace_support::write(&s.records)).unwrap();
    let all = rows(folder.path(), &["lines", "a.bin", "--by", "module"]);
    assert!(
        all[0].starts_with("24.0 MiB") && all[0].ends_with(" layers[*].q_proj (2 modules)"),
        "{all:?}"
    );
    assert!(all.iter().any(|row| row.ends_with("[other tensors, no module]")), "{all:?}");
    let opened = rows(folder.path(), &["lines", "a.bin", "--by", "module", "--depth", "2"]);
    assert!(opened[..2].iter().all(|row| row.starts_with("12.0 MiB")), "{opened:?}");
    let (_, out, _) = memspy(folder.path(), &["lines", "a.bin", "--by", "module"]);
    assert!(out.contains("by the owners of parameters"), "{out}");
    // What was allocated in all has no owner.
    let words = ["flame", "a.bin", "--by", "module", "--total-allocated", "-o", "-"];
    let (code, _, err) = memspy(folder.path(), &words);
    assert!(code == 1 && err.contains("only in exact recordings"), "{err}");
}

#[test]
fn modules_are_known_even_if_none_holds_memory_at_the_peak() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 50 * MIB);
    s.begin();
    s.enter_module(0, Some("head"));
    let temporary = s.malloc(0, 0, MIB);
    s.release(0, temporary);
    s.leave(0);
    s.malloc(0, 0, 9 * MIB);
    s.finish();
    std::fs::write(folder.path().join("a.bin"), trace_support::write(&s.records)).unwrap();
    let all = rows(folder.path(), &["lines", "a.bin", "--by", "module"]);
    assert_eq!(all.last().map(String::as_str), Some("0 B 0.0 % 1.00 MiB head"), "{all:?}");
}
