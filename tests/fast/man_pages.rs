//! `memspy man`: a page for every command, readable by man.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use clap::CommandFactory;
use memspy::cli::args::CliArgs;

#[test]
fn every_command_has_a_page_that_names_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new/man1");
    for _ in 0..2 {
        let mut memspy = Command::new(env!("CARGO_BIN_EXE_memspy"));
        let done = memspy.args(["man", "-o"]).arg(&pages).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    }
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let all = page("memspy.1");
    for command in CliArgs::command().get_subcommands() {
        let name = command.get_name();
        let text = page(&format!("memspy-{name}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{name}");
        let roff = |text: &str| text.replace('-', "\\-");
        assert!(all.contains(&roff(&format!("memspy-{name}(1)"))), "memspy.1 does not name {name}");
        for long in command.get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(text.contains(&roff(&format!("--{long}"))), "{name} --{long}");
        }
    }
    let mode = std::fs::metadata(pages.join("memspy.1")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644, "all users may read them");
}
