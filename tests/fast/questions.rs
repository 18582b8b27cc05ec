//! The pages of `docs/questions`, their generated screens and pictures, and the dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::mem::discriminant;
use std::path::Path;

use memspy::cli::args::CliArgs;
use memspy::render::{ExportedGpu, ExportedJob, MetricsFormat, NamedBytes, metrics_text};

const PAGE_WORDS: usize = 300;
const PICTURE_BYTES: usize = 60_000;
const ALL_PICTURES_BYTES: usize = 600_000;
const QUESTIONS: usize = 10;
const MADE_BY: &str = "<!-- made by scripts/questions/make.py";

struct QuestionPage {
    name: String,
    text: String,
}

impl QuestionPage {
    /// What the script wrote.
    fn generated(&self) -> &str {
        let parts: Vec<&str> = self.text.split(&format!("{MADE_BY} -->\n")).collect();
        assert_eq!(parts.len(), 2, "{}: one generated block", self.name);
        parts[1].split_once("<!-- end -->").expect("the block ends").0
    }

    /// Which program, commit and GPU the block is of.
    fn origin(&self) -> &str {
        let below = self.generated().split("```").nth(2).unwrap_or_default().trim();
        let origin = below.split_once(". `…`").map_or("", |(origin, _)| origin);
        assert!(
            origin.starts_with("memspy ") && origin.contains("(commit "),
            "{}: {below}",
            self.name
        );
        origin
    }

    fn pictures(&self) -> Vec<&str> {
        let rest = self.text.split("](../pictures/").skip(1);
        rest.map(|rest| rest.split(')').next().unwrap()).collect()
    }
}

fn pages() -> Vec<QuestionPage> {
    let entries = fs::read_dir("docs/questions").unwrap().map(|entry| entry.unwrap().path());
    let pages: Vec<_> = entries
        .map(|path| QuestionPage {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            text: fs::read_to_string(&path).unwrap(),
        })
        .collect();
    assert_eq!(pages.len(), QUESTIONS);
    pages
}

fn parse(line: &str) -> CliArgs {
    let line = line.split('#').next().unwrap().replace("PID", "12345");
    let words = line.split_whitespace().map(|word| word.trim_matches('\''));
    CliArgs::from_words(words).unwrap_or_else(|error| panic!("{line}\n{error}"))
}

#[test]
fn a_question_has_a_short_page_a_row_and_a_job() {
    let (table, script) = ("docs/questions.md", "scripts/questions/questions.py");
    let [table, script] = [table, script].map(|path| fs::read_to_string(path).unwrap());
    for QuestionPage { name, text } in pages() {
        let words = text.split_whitespace().count();
        assert!(words <= PAGE_WORDS, "{name}: {words} words, at most {PAGE_WORDS}");
        let row = table.lines().find(|row| row.contains(&format!("](questions/{name}.md) | `")));
        parse(row.unwrap_or_else(|| panic!("{name} has no row")).split('`').nth(1).unwrap());
        assert!(script.contains(&format!("\"{name}\": ")), "the script does not ask {name}");
    }
}

#[test]
fn a_screen_names_a_command_of_its_page() {
    for page in pages() {
        let (above, _) = page.text.split_once(MADE_BY).unwrap();
        let told: Vec<CliArgs> =
            above.lines().filter(|line| line.starts_with("memspy ")).map(parse).collect();
        let screen = page.generated().split("```").nth(1).unwrap_or_default();
        let mut commands = screen.lines().filter_map(|line| line.strip_prefix("$ memspy "));
        assert!(commands.clone().next().is_some(), "{}: no command in its screen", page.name);
        let is_told = |line: &str| {
            let shown = parse(&format!("memspy {line}"));
            told.iter().any(|args| discriminant(&args.command) == discriminant(&shown.command))
        };
        assert!(commands.all(is_told), "{}: a screen of another command", page.name);
        assert!(screen.lines().count() > 3, "{}: {screen}", page.name);
        assert!(!page.origin().is_empty());
    }
}

#[test]
fn pictures_are_named_small_and_of_the_same_run_as_the_screen() {
    let mut named = BTreeSet::new();
    let mut total = 0;
    for page in pages() {
        for name in page.pictures() {
            let text = fs::read_to_string(Path::new("docs/pictures").join(name))
                .unwrap_or_else(|e| panic!("{}: {name}: {e}", page.name));
            let origin = format!("{MADE_BY}: {} -->", page.origin());
            assert!(text.contains(&origin), "{name} is not of {}", page.origin());
            assert!(text.len() <= PICTURE_BYTES, "{name}: {} bytes", text.len());
            assert!(text.contains("prefers-color-scheme: dark"), "{name} is not for dark pages");
            assert!(!text.contains("/tmp/"), "{name} names a path of the machine");
            total += text.len();
            named.insert(name.to_owned());
        }
    }
    assert!(total <= ALL_PICTURES_BYTES, "{total} bytes");
    let entries = fs::read_dir("docs/pictures").unwrap();
    let there = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<String>>(), named, "all pictures are named by a page");
}

/// Names of all series of the exporter.
fn series() -> BTreeSet<String> {
    let rows = vec![NamedBytes { name: "x".to_owned(), category: None, bytes: 1 }];
    let gpu = ExportedGpu {
        allocated: Some(1),
        reserved: Some(1),
        allocated_peak: Some(1),
        reserved_peak: Some(1),
        inactive_split: Some(1),
        retries: Some(1),
        ooms: Some(1),
        outside: Some(1),
        others: Some(1),
        total: Some(1),
        free: Some(1),
        full_in: Some(1.0),
        cached_free: Some(2),
        largest_free: Some(1),
        lines: rows.clone(),
        attribution: rows.clone(),
        owners: rows,
        owner_stop: Some(0.1),
        ..ExportedGpu::default()
    };
    let job = ExportedJob { gpus: vec![gpu], ..ExportedJob::default() };
    let text = metrics_text(&[job], MetricsFormat::OpenMetrics).unwrap();
    let names = text.lines().filter_map(|line| line.split_once('{')).map(|(name, _)| name);
    names.map(str::to_owned).collect()
}

/// Names of series in a query.
fn named_series(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("memspy_"))
}

/// All values of the keys `expr` and `query`.
fn queries(value: &serde_json::Value) -> Vec<&str> {
    match value {
        serde_json::Value::Object(entries) => entries
            .iter()
            .flat_map(|(key, value)| match value.as_str() {
                Some(text) if key == "expr" || key == "query" => vec![text],
                _ => queries(value),
            })
            .collect(),
        serde_json::Value::Array(items) => items.iter().flat_map(queries).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_dashboard_asks_for_series_that_the_exporter_has() {
    let text = fs::read_to_string("docs/grafana/memspy.json").unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let there = series();
    let asked: BTreeSet<&str> = queries(&dashboard).into_iter().flat_map(named_series).collect();
    assert!(asked.len() >= 10, "{asked:?}");
    for name in asked {
        assert!(there.contains(name), "the exporter has no series {name}: {there:?}");
    }
}
