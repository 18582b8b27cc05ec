//! Who imports whom, also by a re-export or a public field, and who starts threads, prints and
//! exits.

use std::collections::BTreeMap;

use super::rooms::{EVERYWHERE, HANDED_ON, Room, THREADS};
use super::source::{Source, UsedPath};

/// By path.
pub type Sources = BTreeMap<String, Source>;

/// Violations in `sources`, one line each. `external`: crates of the manifest.
pub fn complaints(
    rooms: &BTreeMap<&str, Room>,
    sources: &Sources,
    external: &[String],
) -> Vec<String> {
    let mut complaints = Vec::new();
    let exports = exports(rooms, sources);
    for (file, source) in sources {
        let Some(room) = rooms.get(source.room()) else { continue };
        for path in &source.paths {
            match path {
                UsedPath::Own(names) => {
                    for to in origins(names, &exports) {
                        if may_not_import(rooms, source.room(), &to) && !is_handed_on(&to) {
                            complaints.push(format!(
                                "{file}: {} may not import {}",
                                source.room(),
                                to.join("::")
                            ));
                        }
                    }
                }
                UsedPath::External(names) => {
                    // A name alone is a variable.
                    let head = names.first().filter(|_| names.len() > 1).map_or("", String::as_str);
                    if external.iter().any(|name| name == head)
                        && !EVERYWHERE.contains(&head)
                        && !room.crates.contains(&head)
                    {
                        complaints.push(format!(
                            "{file}: {} is not a home of crate {head}",
                            source.room()
                        ));
                    }
                }
            }
        }
        complaints.extend(printing(file, source));
        complaints.extend(threads(file, source));
        complaints.extend(clocks(file, source));
    }
    complaints.extend(leaks(rooms, sources, &exports));
    complaints
}

/// By room and name: what a re-export stands for.
type Exports = BTreeMap<(String, String), Vec<String>>;

fn exports(rooms: &BTreeMap<&str, Room>, sources: &Sources) -> Exports {
    let mut exports = Exports::new();
    for source in sources.values() {
        for (name, path) in &source.exports {
            if let UsedPath::Own(names) = path
                && names.first().is_some_and(|to| to != source.room())
                && names.first().is_some_and(|to| rooms.contains_key(to.as_str()))
            {
                exports.insert((source.room().to_owned(), name.clone()), names.clone());
            }
        }
    }
    exports
}

/// The path, and the one behind a re-export.
fn origins(names: &[String], exports: &Exports) -> Vec<Vec<String>> {
    let mut found = vec![names.to_vec()];
    let Some(room) = names.first() else { return found };
    for name in &names[1..] {
        if let Some(origin) = exports.get(&(room.clone(), name.clone())) {
            found.push(origin.clone());
        }
    }
    found
}

fn may_not_import(rooms: &BTreeMap<&str, Room>, from: &str, to: &[String]) -> bool {
    let Some(to) = to.first().map(String::as_str) else { return false };
    to != from && rooms.contains_key(to) && !rooms[from].imports.contains(&to)
}

/// Whether it is one of the shared values, or a variant of one.
fn is_handed_on(path: &[String]) -> bool {
    let is_one = |room: &String, name: &String| {
        HANDED_ON.iter().any(|(from, what)| room == from && name == what)
    };
    match path {
        // Not its functions: they may read a target.
        [room, .., name, variant] if variant.starts_with(char::is_uppercase) => {
            is_one(room, name) || is_one(room, variant)
        }
        [room, .., name] => is_one(room, name),
        _ => false,
    }
}

/// Rooms to which a public field or result gives what they may not import.
fn leaks(rooms: &BTreeMap<&str, Room>, sources: &Sources, exports: &Exports) -> Vec<String> {
    let mut complaints = Vec::new();
    for (file, source) in sources {
        for (what, paths) in &source.hands_out {
            for path in paths {
                let UsedPath::Own(names) = path else { continue };
                for to in origins(names, exports) {
                    let readers: Vec<&str> = rooms
                        .iter()
                        .filter(|(name, room)| {
                            room.imports.contains(&source.room())
                                && may_not_import(rooms, name, &to)
                        })
                        .map(|(name, _)| *name)
                        .collect();
                    if !readers.is_empty() && !is_handed_on(&to) {
                        complaints.push(format!(
                            "{file}: {what} gives {} to {}",
                            to.join("::"),
                            readers.join(" and ")
                        ));
                    }
                }
            }
        }
    }
    complaints
}

fn printing(file: &str, source: &Source) -> Option<String> {
    let prints =
        ["println", "eprintln", "print", "eprint"].iter().find(|it| source.macros.contains(**it));
    let exits = source.paths.iter().find(|path| is_std(path, "process", &["exit"]));
    let what = prints.map(|it| format!("{it}!")).or(exits.map(|_| "process::exit".to_owned()))?;
    (source.room() != "cli").then(|| format!("{file}: only a face prints or exits: {what}"))
}

fn threads(file: &str, source: &Source) -> Option<String> {
    let names = ["spawn", "sleep", "scope", "Builder", "park", "park_timeout", "sleep_until"];
    let found = source.paths.iter().find(|path| is_std(path, "thread", &names))?;
    let UsedPath::External(found) = found else { return None };
    let is_home = THREADS.iter().any(|home| file.starts_with(home));
    (!is_home)
        .then(|| format!("{file}: is no place for threads and sleeping: {}", found.join("::")))
}

/// These rooms take the time from records, so live and replay agree.
const TIMELESS: [&str; 3] = ["analysis", "ownership", "trace"];

fn clocks(file: &str, source: &Source) -> Option<String> {
    let room = source.room();
    let names = ["Instant", "SystemTime"];
    let found = source.paths.iter().find(|path| is_std(path, "time", &names))?;
    let UsedPath::External(found) = found else { return None };
    TIMELESS.contains(&room).then(|| format!("{file}: {room} knows no clock: {}", found.join("::")))
}

/// Whether `path` is one of `names` in a module of the standard library.
fn is_std(path: &UsedPath, module: &str, names: &[&str]) -> bool {
    let UsedPath::External(path) = path else { return false };
    path.windows(2).any(|pair| pair[0] == module && names.contains(&pair[1].as_str()))
}
