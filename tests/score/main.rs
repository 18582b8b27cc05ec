//! Scores attribution: replays the recordings of tests/corpus, compared with PyTorch's own history.
//!
//! ```sh
//! cargo test --release --test score -- --all           # all recordings but those held out
//! cargo test --release --test score -- --held-out      # the others: only after a rule is done
//! cargo test --release --test score -- --all --save    # today's score becomes the minimum
//! cargo test --release --test score -- --folder FOLDER # your own recordings
//! ```
//! Without options it takes the few recordings of continuous integration. It fails if a recording
//! scores lower than the saved score, or if proven bytes are wrong.

mod judge;
mod table;
mod truth;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use judge::{Score, judge};
use truth::{Conditions, Truth};

/// Scores may differ by this many points from the saved ones, which are rounded.
const NOISE: f64 = 0.011;
const SAVED: &str = "score.json";

/// A recording and its score.
pub struct Judged {
    /// Its file name without the extension.
    pub name: String,
    /// How it was made.
    pub conditions: Conditions,
    /// Its accuracy.
    pub score: Score,
}

#[derive(Default)]
struct Words {
    all: bool,
    held_out: bool,
    save: bool,
    one: Option<PathBuf>,
    folder: Option<PathBuf>,
    names: Vec<String>,
}

impl Words {
    /// `cargo test` gives libtest's options to every test; they are ignored here.
    fn parse() -> Result<Words> {
        let mut words = Words { all: std::env::var_os("MEMSPY_ALL").is_some(), ..Words::default() };
        let mut given = std::env::args().skip(1);
        while let Some(word) = given.next() {
            match word.as_str() {
                "--all" => words.all = true,
                "--held-out" => words.held_out = true,
                "--save" => words.save = true,
                "--one" => words.one = given.next().map(PathBuf::from),
                "--folder" => words.folder = given.next().map(PathBuf::from),
                "--test-threads" => drop(given.next()),
                flag if flag.starts_with("--") => {}
                name => words.names.push(name.to_owned()),
            }
        }
        Ok(words)
    }
}

fn main() -> Result<ExitCode> {
    let words = Words::parse()?;
    if let Some(trace) = &words.one {
        let truth = Truth::read(&trace.with_extension("truth.json.gz"))?;
        let score = judge(trace, &truth)?;
        println!("{}", serde_json::to_string(&(&score, score.seconds, score.mebibytes))?);
        return Ok(ExitCode::SUCCESS);
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let folder = words.folder.clone().unwrap_or_else(|| corpus.clone());
    let names = chosen(&words, &corpus, &folder)?;
    if names.is_empty() && words.names.is_empty() {
        bail!("{} has no recordings", folder.display());
    }
    let judged = judge_all(&folder, &names)?;
    print!("{}", table::of_recordings(&judged));
    if judged.len() > 1 {
        print!("{}", table::by_condition(&judged));
    }
    let path = corpus.join(SAVED);
    let mut saved = read_saved(&path)?;
    if words.folder.is_some() {
        print!("{}", table::beside_the_set(&judged, |name| made_like(name, &saved)));
        return Ok(ExitCode::SUCCESS);
    }
    if words.save {
        saved.extend(judged.iter().map(|one| (one.name.clone(), one.score.clone())));
        std::fs::write(&path, serde_json::to_string_pretty(&saved)? + "\n")?;
        println!("{} scores saved in {}", judged.len(), path.display());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(match report(&judged, &saved) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Which recordings to judge.
fn chosen(words: &Words, corpus: &Path, folder: &Path) -> Result<Vec<String>> {
    let list = |name: &str| -> Result<Vec<String>> {
        let text = std::fs::read_to_string(corpus.join(name)).with_context(|| name.to_owned())?;
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
    };
    let mut there = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "bin")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            there.push(name.to_owned());
        }
    }
    there.sort();
    let held_out = list("held-out.txt")?;
    let in_ci = list("ci.txt")?;
    there.retain(|name| match () {
        () if !words.names.is_empty() => words.names.iter().any(|word| name.contains(word)),
        () if words.folder.is_some() => true,
        () if held_out.contains(name) => words.held_out,
        () => words.all || !words.held_out && in_ci.contains(name),
    });
    Ok(there)
}

/// Each in its own process, for its memory; in parallel on all processors.
fn judge_all(folder: &Path, names: &[String]) -> Result<Vec<Judged>> {
    let at_a_time = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut judged = Vec::new();
    for names in names.chunks(at_a_time) {
        let mut running = Vec::new();
        for name in names {
            let trace = folder.join(name).with_extension("bin");
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("--one").arg(&trace).stdout(std::process::Stdio::piped());
            running.push((name, trace, command.spawn()?));
        }
        for (name, trace, child) in running {
            let output = child.wait_with_output()?;
            if !output.status.success() {
                bail!("{name} cannot be judged: see above");
            }
            let (mut score, seconds, mebibytes): (Score, f64, u64) =
                serde_json::from_slice(&output.stdout)?;
            (score.seconds, score.mebibytes) = (seconds, mebibytes);
            let conditions = Truth::read(&trace.with_extension("truth.json.gz"))?.conditions;
            judged.push(Judged { name: name.clone(), conditions, score });
        }
    }
    Ok(judged)
}

fn read_saved(path: &Path) -> Result<BTreeMap<String, Score>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Prints what rose and fell against the saved score; returns how many recordings failed.
fn report(judged: &[Judged], saved: &BTreeMap<String, Score>) -> usize {
    let (mut failed, mut risen) = (0, 0);
    for one in judged {
        let mut why = Vec::new();
        match saved.get(&one.name) {
            None => why.push("it has no saved score: '--save' saves it".to_owned()),
            Some(floor) => {
                let (was, is) = (floor.wrong_and_proven(), one.score.wrong_and_proven());
                if is > was {
                    why.push(format!(
                        "{is} bytes called proven are wrong, {was} in the saved score"
                    ));
                }
                for ((what, was), (_, is)) in table::figures(floor).zip(table::figures(&one.score))
                {
                    if is < was - NOISE {
                        why.push(format!("{what} fell from {was:.2} to {is:.2} %"));
                    } else if is > was + NOISE {
                        risen += 1;
                        println!("{}: {what} rose from {was:.2} to {is:.2} %", one.name);
                    }
                }
            }
        }
        if !why.is_empty() {
            failed += 1;
            println!("{} FAILED: {}", one.name, why.join("; "));
        }
    }
    if risen > 0 {
        println!("{risen} figures rose: '--save' makes them the floor");
    }
    println!("score: {} passed, {failed} failed", judged.len() - failed);
    failed
}

/// The saved recording made like a user's own: `fresh-lora` like `lora`.
fn made_like<'a>(name: &str, saved: &'a BTreeMap<String, Score>) -> Option<&'a Score> {
    let mut like: Vec<_> = saved.iter().filter(|(of_set, _)| name.ends_with(*of_set)).collect();
    like.sort_by_key(|(of_set, _)| of_set.len());
    like.last().map(|(_, score)| *score)
}
