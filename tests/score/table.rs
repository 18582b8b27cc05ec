//! Scores as tables.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Judged;
use crate::judge::{Known, Part, Score};
use crate::truth::Conditions;

/// What a rule must not lower, with names, in per cent.
pub fn figures(score: &Score) -> impl Iterator<Item = (String, f64)> + use<> {
    let parts =
        [("live", Some(&score.live)), ("peak", Some(&score.peak)), ("all", score.every.as_ref())];
    let mut figures = Vec::new();
    for (moment, part) in parts {
        let Some(part) = part else { continue };
        figures.push((format!("{moment}: stack"), part.stack));
        figures.push((format!("{moment}: line"), part.line));
        figures.push((format!("{moment}: right and said so"), right_and_said_so(part)));
    }
    figures.into_iter()
}

/// Per cent of bytes that are on their stack and proven or probable.
fn right_and_said_so(part: &Part) -> f64 {
    let right = |name: &str| part.known.get(name).map_or(0, |known| known.right);
    let share = 100.0 * (right("proven") + right("probable")) as f64 / part.bytes.max(1) as f64;
    (share * 100.0).round() / 100.0
}

/// One line per recording.
pub fn of_recordings(judged: &[Judged]) -> String {
    let mut text = format!(
        "{:<24} {:>15} {:>15} {:>15}  {}\n",
        "recording",
        "live",
        "all allocated",
        "peak",
        "bytes live; all bytes: said / of it right, %; time, memory"
    );
    for one in judged {
        let score = &one.score;
        let _ = writeln!(
            text,
            "{:<24} {:>15} {:>15} {:>15}  {}; {}; {:.2} s, {} MiB",
            one.name,
            pair(&score.live),
            score.every.as_ref().map_or("-".to_owned(), pair),
            pair(&score.peak),
            said(&score.live.known),
            score.every.as_ref().map_or("-".to_owned(), |part| said(&part.known)),
            score.seconds,
            score.mebibytes,
        );
    }
    text
}

/// Stack and line.
fn pair(part: &Part) -> String {
    format!("{:.1} / {:.1}", part.stack, part.line)
}

/// Bytes by evidence, and how many are right.
fn said(known: &BTreeMap<String, Known>) -> String {
    let total: u64 = known.values().map(|known| known.bytes).sum();
    let mut parts = Vec::new();
    for name in ["proven", "probable", "not proven", "sampled", "shared", "not seen"] {
        if let Some(known) = known.get(name).filter(|known| known.bytes > 0) {
            let bytes = 100.0 * known.bytes as f64 / total as f64;
            let right = 100.0 * known.right as f64 / known.bytes as f64;
            parts.push(format!("{name} {bytes:.0} / {right:.1}"));
        }
    }
    parts.join(", ")
}

/// Per cent of a part's bytes on their stack.
type StackShare = fn(&Score) -> Option<f64>;

/// By condition: the mean of the recordings outside the set, and of those in it that were made
/// alike.
pub fn beside_the_set<'a>(
    judged: &[Judged],
    made_like: impl Fn(&str) -> Option<&'a Score>,
) -> String {
    let mut groups: BTreeMap<String, Vec<(&Score, &Score)>> = BTreeMap::new();
    for one in judged {
        if let Some(like) = made_like(&one.name) {
            groups.entry(group(&one.conditions)).or_default().push((&one.score, like));
        }
    }
    let mut text = String::from(
        "\nright stack, mean: these recordings (the set's that were made like them)\n",
    );
    let parts: [(&str, StackShare); 3] = [
        ("live", |score| Some(score.live.stack)),
        ("all allocated", |score| score.every.as_ref().map(|part| part.stack)),
        ("peak", |score| Some(score.peak.stack)),
    ];
    for (name, pairs) in groups {
        let _ = write!(text, "{name:<42} {:>2}", pairs.len());
        for (moment, share) in parts {
            let shares: Vec<_> =
                pairs.iter().filter_map(|(is, was)| share(is).zip(share(was))).collect();
            let n = shares.len() as f64;
            let (is, was) =
                shares.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
            if n > 0.0 {
                let _ = write!(text, "  {moment} {:.1} ({:.1})", is / n, was / n);
            }
        }
        text.push('\n');
    }
    text
}

/// The conditions that matter most.
fn group(of: &Conditions) -> String {
    format!("{}, {} processors, {}", of.mode(), of.processors, of.threads())
}

/// Means by condition.
pub fn by_condition(judged: &[Judged]) -> String {
    let mut groups: BTreeMap<String, Vec<&Judged>> = BTreeMap::new();
    for one in judged {
        let of = &one.conditions;
        let mode = of.mode();
        let mut names = vec![
            format!("1 {}", group(of)),
            format!("2 {mode}, {}", of.load),
            format!("3 {mode}, {}", of.machine),
            format!("4 {mode}, {}", if of.user == "root" { "as root" } else { "as a user" }),
            format!(
                "5 {mode}, {}",
                if of.start == "start" { "from the start" } else { "attached" }
            ),
        ];
        if mode == "followed" {
            names.push(format!("6 followed, --cpu {}", of.words.last().map_or("", |word| word)));
        }
        for name in names {
            groups.entry(name).or_default().push(one);
        }
    }
    let mut text = format!(
        "\n{:<42} {:>2} {:>13} {:>13} {:>13} {:>6}  {}\n",
        "by condition: mean of stack / line",
        "n",
        "live",
        "all allocated",
        "peak",
        "lowest",
        "bytes live: said / of it right, %"
    );
    for (name, group) in groups {
        let mean = |part: &dyn Fn(&Score) -> Option<Part>| {
            let parts: Vec<Part> = group.iter().filter_map(|one| part(&one.score)).collect();
            let n = parts.len() as f64;
            let sum = |of: fn(&Part) -> f64| parts.iter().map(of).sum::<f64>() / n;
            if parts.is_empty() {
                "-".to_owned()
            } else {
                format!("{:.1} / {:.1}", sum(|p| p.stack), sum(|p| p.line))
            }
        };
        let lowest = group.iter().map(|one| one.score.live.stack.min(one.score.peak.stack));
        let mut known: BTreeMap<String, Known> = BTreeMap::new();
        for one in &group {
            // Each recording counts equally.
            let total = one.score.live.known.values().map(|known| known.bytes).sum::<u64>().max(1);
            for (name, of) in &one.score.live.known {
                let part = |bytes: u64| (bytes as f64 / total as f64 * 1e9) as u64;
                let sum = known.entry(name.clone()).or_default();
                sum.bytes += part(of.bytes);
                sum.right += part(of.right);
            }
        }
        let _ = writeln!(
            text,
            "{:<42} {:>2} {:>13} {:>13} {:>13} {:>6.1}  {}",
            &name[2..],
            group.len(),
            mean(&|score| Some(score.live.clone())),
            mean(&|score| score.every.clone()),
            mean(&|score| Some(score.peak.clone())),
            lowest.fold(100.0, f64::min),
            said(&known),
        );
    }
    text
}
