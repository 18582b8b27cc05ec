//! A process of another user: one clear line that names the remedy.

#![allow(unreachable_pub, reason = "support is a module of each test binary")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::memspy::run;
use support::pythons;
use support::target::Target;

#[test]
fn another_users_process_is_refused_with_the_remedy() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("rights are not tested: only root can start processes as another user");
        return;
    }
    let target = Target::start(pythons::newest_here().target("life.py"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = folder.path().join("memspy");
    std::fs::copy(env!("CARGO_BIN_EXE_memspy"), &program).unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        run(command.args(words).args(["-p", &target.pid().to_string()]).current_dir(folder.path()))
    };
    for words in [&["record"][..], &["dump"]] {
        as_nobody(words).refused(&["user 0", "user 65534", "sudo"]);
    }
    let doctor = as_nobody(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(doctor.out.contains("NO"), "{}", doctor.out);
    assert!(doctor.out.contains("sudo"), "{}", doctor.out);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left behind: {left:?}");
    target.finish();
}
