//! `scripts/release/notes.sh` prints a version's section of the changelog.

use std::process::Command;

fn notes(version: &str) -> String {
    let done = Command::new("scripts/release/notes.sh").arg(version).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn a_version_has_its_own_notes_or_those_of_what_is_unreleased() {
    let changelog = std::fs::read_to_string("CHANGELOG.md").unwrap();
    let section = |name: &str| {
        let after = changelog.split(&format!("\n## [{name}]")).nth(1).unwrap();
        let body = after.split("\n## [").next().unwrap();
        body.split_once('\n').unwrap().1.trim().to_owned()
    };
    for (version, name) in [("0.1.0", "0.1.0"), ("999.0.0", "Unreleased")] {
        let text = notes(version);
        let body = text.strip_prefix(&format!("# memspy {version}\n")).unwrap().trim();
        assert_eq!(body, section(name), "{version}");
    }
}
