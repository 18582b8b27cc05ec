//! The examples of the README are words that memspy understands, and the files it names are there.

use memspy::cli::args::CliArgs;

fn readme() -> String {
    std::fs::read_to_string("README.md").unwrap()
}

/// The lines inside code fences.
fn code(text: &str) -> Vec<&str> {
    text.split("```").skip(1).step_by(2).flat_map(str::lines).collect()
}

#[test]
fn every_command_of_the_readme_is_understood() {
    let text = readme();
    let commands: Vec<&str> =
        code(&text).into_iter().filter(|l| l.starts_with("memspy ")).collect();
    assert!(commands.len() > 10, "the README shows how to use memspy: {commands:?}");
    for line in commands {
        let words = line.split('#').next().unwrap().split_whitespace();
        let words = words.map(|word| word.trim_matches('\''));
        if let Err(error) = CliArgs::from_words(words) {
            panic!("README: {line}\n{error}");
        }
    }
}

#[test]
fn every_file_the_readme_names_is_there() {
    let text = readme();
    let in_code = code(&text).into_iter().filter_map(|l| l.split_whitespace().next());
    let in_text = text
        .split('`')
        .skip(1)
        .step_by(2)
        .chain(text.split("](").skip(1).map(|l| l.split(')').next().unwrap()));
    let names = in_code.chain(in_text).filter(|n| {
        ["src/", "cuda/", "scripts/", "tests/", "benches/"].iter().any(|p| n.starts_with(p))
    });
    let mut seen = 0;
    for name in names {
        assert!(std::path::Path::new(name).exists(), "README names {name}");
        seen += 1;
    }
    assert!(seen > 6);
}
