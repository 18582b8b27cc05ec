//! memspy understands the examples of README and guides; names and links in them exist.

use std::path::PathBuf;

use clap::CommandFactory;
use memspy::analysis::KINDS;
use memspy::cli::args::CliArgs;

fn readme() -> String {
    std::fs::read_to_string("README.md").unwrap()
}

/// The README and the guides.
fn pages() -> Vec<String> {
    let guides = guides().into_iter().map(|path| std::fs::read_to_string(path).unwrap());
    guides.chain([readme()]).collect()
}

fn guides() -> Vec<PathBuf> {
    let folders = ["docs", "docs/questions"].map(|folder| std::fs::read_dir(folder).unwrap());
    let entries = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect()
}

/// The lines inside code fences.
fn code(text: &str) -> Vec<&str> {
    text.split("```").skip(1).step_by(2).flat_map(str::lines).collect()
}

#[test]
fn every_command_of_the_readme_and_the_guides_is_understood() {
    let mut seen = 0;
    for text in pages() {
        let commands = code(&text).into_iter().map(|line| line.trim_start_matches("$ "));
        for line in commands.filter(|line| line.starts_with("memspy ")) {
            let words = line.split('#').next().unwrap().split_whitespace();
            let words = words.map(|word| word.trim_matches('\''));
            if let Err(error) = CliArgs::from_words(words) {
                panic!("{line}\n{error}");
            }
            seen += 1;
        }
    }
    assert!(seen > 60, "the pages show how to use memspy: {seen} commands");
}

#[test]
fn every_file_that_they_name_is_there() {
    let mut seen = 0;
    for text in pages() {
        let in_code = code(&text).into_iter().filter_map(|l| l.split_whitespace().next());
        let in_text = text.split('`').skip(1).step_by(2);
        // A command's arguments are not part of its file's name.
        let in_text = in_text.filter_map(|words| words.split_whitespace().next());
        let folders = ["src/", "cuda/", "scripts/", "tests/", "benches/"];
        for name in in_code.chain(in_text).filter(|n| folders.iter().any(|p| n.starts_with(p))) {
            assert!(std::path::Path::new(name).exists(), "{name} is named, and is not there");
            seen += 1;
        }
    }
    assert!(seen > 6);
}

/// A heading as a link's part after `#`.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(kept).collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let links = |text: &str| -> Vec<String> {
        let ends = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned());
        ends.filter(|link| !link.starts_with("http")).collect()
    };
    let others = ["README.md", "CHANGELOG.md", "SECURITY.md", "benches/README.md"];
    for path in guides().into_iter().chain(others.map(PathBuf::from)) {
        for link in links(&std::fs::read_to_string(&path).unwrap()) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", path.display());
            let has = |line: &str| line.starts_with('#') && anchor(line) == heading;
            let found =
                heading.is_empty() || std::fs::read_to_string(&target).unwrap().lines().any(has);
            assert!(found, "{}: {link}: no such heading", path.display());
        }
    }
}

#[test]
fn every_command_has_a_section_of_its_own() {
    let page = std::fs::read_to_string("docs/commands.md").unwrap();
    let mut seen = 0;
    for command in CliArgs::command().get_subcommands() {
        let title = format!("\n### {}\n", command.get_name());
        assert!(page.contains(&title), "docs/commands.md has no section on {}", command.get_name());
        seen += 1;
    }
    assert!(seen > 15, "{seen} commands");
}

#[test]
fn every_finding_has_a_section_of_its_own() {
    let pages = ["docs/findings.md", "docs/hidden-memory.md"];
    let text: String = pages.map(|page| std::fs::read_to_string(page).unwrap()).concat();
    for kind in KINDS {
        assert!(text.contains(&format!("\n## {kind}\n")), "{pages:?} have nothing on {kind}");
    }
}
