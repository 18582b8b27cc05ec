//! The page of `memspy report` in a real browser: no errors, every click works, both themes, a
//! phone.

use std::path::PathBuf;

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use crate::support::browser::Browser;
use crate::support::memspy::memspy;
use memspy::model::{Record, RecordSink};
use memspy::trace::TraceWriter;
use serde_json::{Value, json};

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\u{2028}";

fn write(records: &[Record], folder: &tempfile::TempDir, name: &str) -> PathBuf {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for record in records {
        writer.record(record).unwrap();
    }
    let trace = folder.path().join(name);
    std::fs::write(&trace, writer.finish().unwrap().0).unwrap();
    trace
}

/// Twenty steps that allocate in a forward pass and free it, and keep a megabyte each; a hostile
/// name among the lines.
fn training() -> Vec<Record> {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 200 * MIB);
    s.begin();
    for _ in 0..20 {
        s.line(0, 11);
        s.enter(0, "forward", 30);
        let activations: Vec<u64> = (0..8)
            .map(|layer| {
                s.line(0, 31 + layer);
                s.malloc(0, 0, 12 * MIB)
            })
            .collect();
        s.leave(0);
        s.line(0, 12);
        s.enter(0, HOSTILE, 60);
        let gone = s.malloc(0, 0, 30 * MIB);
        s.release(0, gone);
        s.leave(0);
        for activation in activations {
            s.release(0, activation);
        }
        s.line(0, 13);
        s.malloc(0, 0, MIB);
        s.poll();
    }
    s.finish();
    s.records.clone()
}

/// The sums of what the page shows, by its own code: stacks, lines, the flamegraph's root.
const SUMS: &str = "(() => { const { track, sums, state } = page; const add = (all) => all.reduce((a, b) => a + b, 0); \
    return [sums.total, add([...sums.bytes]), add(lineRows(track, sums).map((row) => row.own)), \
    frameTree(track, sums, {}).bytes, frameTree(track, sums, { inverted: true }).bytes]; })()";

fn one_sum(browser: &mut Browser) -> f64 {
    let sums = browser.value(SUMS);
    let sums: Vec<f64> = sums.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    assert!(sums.iter().all(|sum| *sum == sums[0]), "every view is the same sum: {sums:?}");
    sums[0]
}

fn text(browser: &mut Browser, id: &str) -> String {
    browser.value(&format!("byId('{id}').textContent")).as_str().unwrap().to_owned()
}

/// The picture on a canvas.
fn picture(browser: &mut Browser, id: &str) -> Value {
    browser.value(&format!("byId('{id}').toDataURL()"))
}

#[test]
fn the_page_works_in_a_browser() {
    let Some(mut browser) = Browser::start() else {
        let why = std::fs::read_to_string("target/no-browser");
        eprint!("{}", why.expect("chromium is missing: scripts/setup.sh tests installs it"));
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let trace = write(&training(), &folder, "trace.bin");
    let page = folder.path().join("report.html");
    let words = [trace.to_str().unwrap(), "-o", page.to_str().unwrap(), "--title", HOSTILE];
    memspy(&[&["report"], &words[..]].concat()).ok();

    // It opens at the peak and describes it.
    browser.call("Network.enable", json!({}));
    browser.open(&page, "");
    let sentence = text(&mut browser, "sentence");
    let peak = (200 + 8 * 12 + 30 + 19) * MIB;
    assert!(sentence.contains("At its peak") && sentence.contains("345.00 MiB"), "{sentence}");
    assert_eq!(one_sum(&mut browser), peak as f64);
    assert!(browser.value("location.hash").as_str().unwrap() == "");
    // Hostile names are text and create no elements.
    assert_eq!(browser.value("document.images.length + document.scripts.length"), json!(2));
    assert!(text(&mut browser, "title").starts_with("</script><img"));

    // A click on the timeline shows that moment.
    let before = (picture(&mut browser, "flamegraph"), sentence);
    browser.drag("timeline", (0.35, 0.5), (0.35, 0.5));
    let after = (picture(&mut browser, "flamegraph"), text(&mut browser, "sentence"));
    assert!(before.0 != after.0 && before.1 != after.1, "{}", after.1);
    assert!(one_sum(&mut browser) < peak as f64);
    // The address remembers it.
    let hash = browser.value("location.hash").as_str().unwrap().to_owned();
    let moment = browser.value("page.shownMoment()");
    assert!(hash.contains("t="), "{hash}");

    // A window: leaked is what stayed, churned is the rest of what it allocated.
    browser.drag("timeline", (0.3, 0.5), (0.9, 0.5));
    assert!(text(&mut browser, "sentence").contains("still live at the end"));
    let leaked = one_sum(&mut browser);
    assert!(leaked > 0.0);
    for view in ["Churned", "Difference", "Live at its end"] {
        let press = format!(
            "[...byId('moments').children].find((b) => b.textContent === '{view}').click()"
        );
        browser.value(&press);
        assert!(one_sum(&mut browser) > 0.0, "{view}");
    }
    let window = browser.value("page.state.window");
    let windowed = browser.value("location.hash").as_str().unwrap().to_owned();

    // Search.
    browser.value("page.change({ view: 'live', window: null, tab: 'flame', moment: page.track.moments.peak })");
    browser.key("/");
    for letter in "forward".chars() {
        browser.key(&letter.to_string());
    }
    let detail = text(&mut browser, "flame-detail");
    assert!(detail.contains("forward") && detail.contains("96.00 MiB"), "{detail}");

    // Every tab draws, keys choose them; a line leads to its callers.
    browser.key("Escape");
    for (key, tab) in
        ["flame", "lines", "source", "owners", "modules", "blocks", "about"].iter().enumerate()
    {
        browser.key(&(key + 1).to_string());
        let shown = format!(
            "getComputedStyle(byId('{tab}')).display === 'block' && byId('{tab}').textContent.length > 20"
        );
        assert_eq!(browser.value(&shown), json!(true), "{tab}");
    }
    browser.key("2");
    let rows = browser.value("document.querySelectorAll('#lines tbody tr').length");
    assert!(rows.as_u64().unwrap() >= 10, "{rows}");
    browser.value("[...document.querySelectorAll('#lines tbody tr')].find((r) => r.textContent.includes('train.py:33')).click()");
    let callers = browser
        .value("[page.state.tab, flame.root.bytes, [...flame.root.children.values()].length]");
    assert_eq!(callers, json!(["flame", 12 * MIB, 1]));
    browser.key("Escape");

    // The function of a selected frame in the middle, callers above, callees below.
    browser.value("page.change({ view: 'live', window: null, moment: page.track.moments.peak })");
    browser.value("byId('flamegraph').focus()");
    // The greatest is older than the recording, the second is what 'train' calls in line 11.
    for key in ["ArrowDown", "ArrowRight", "ArrowDown"] {
        browser.key(key);
    }
    browser.value("byId('flame-sandwich').click()");
    let rows = "flame.boxes.map((b) => [b.depth, b.node.frame < 0 ? '' : frameText(b.node.frame), \
                b.node.bytes]).sort((a, b) => a[0] - b[0] || b[2] - a[2])";
    let shown = browser.value(rows);
    let shown: Vec<(u64, String, u64)> = serde_json::from_value(shown).unwrap();
    // 'train' calls 'forward' in line 11, and it allocates in eight lines of its own.
    assert_eq!(shown.len(), 10, "{shown:?}");
    assert!(shown[0].0 == 0 && shown[0].1.contains("train.py:11"), "{shown:?}");
    assert_eq!((shown[0].2, shown[1].0, shown[1].2), (96 * MIB, 1, 96 * MIB));
    assert!(shown[2..].iter().all(|row| (row.0, row.2) == (2, 12 * MIB)), "{shown:?}");
    let address = browser.value("location.hash").as_str().unwrap().to_owned();
    assert!(address.contains("&of="), "{address}");
    // A click selects the caller; Escape shows all stacks again, S starts with the selected frame.
    browser.drag("flamegraph", (0.5, 0.1), (0.5, 0.1));
    let whole = browser.value("[sandwichText(), flame.root.bytes, flame.callers.children.size]");
    assert_eq!(whole, json!(["train (train.py)", peak - 200 * MIB, 0]));
    browser.key("Escape");
    assert_eq!(browser.value("[flame.callers, flame.root.bytes]"), json!([null, peak]));
    browser.key("ArrowDown");
    browser.key("ArrowRight");
    browser.key("s");
    assert_eq!(browser.value("sandwichText()"), json!("train (train.py)"));
    browser.key("Escape");

    // Themes.
    let ground = "getComputedStyle(document.body).backgroundColor";
    let mut colours = Vec::new();
    for theme in ["light", "dark"] {
        let features = json!([{"name": "prefers-color-scheme", "value": theme}]);
        browser.call("Emulation.setEmulatedMedia", json!({"features": features}));
        browser.open(&page, "");
        colours.push(browser.value(ground));
    }
    assert_ne!(colours[0], colours[1]);
    browser.value("byId('theme').click()");
    assert_eq!(browser.value(ground), colours[0]);

    // The hash restores the moment, and the window.
    browser.open(&page, &hash);
    assert_eq!(browser.value("page.shownMoment()"), moment);
    browser.open(&page, &windowed);
    assert_eq!(browser.value("page.state.window"), window);
    // Nonsense in it is ignored.
    browser.open(&page, "#t=x&from=1&tab=<b>&r=9&g=99&view=constructor");
    one_sum(&mut browser);

    // On a phone nothing overflows.
    let phone = json!({"width": 375, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone);
    for tab in ["flame", "lines", "source", "owners", "modules", "blocks", "about"] {
        browser.open(&page, &format!("#tab={tab}"));
        let width = browser.value("document.documentElement.scrollWidth");
        assert!(width.as_u64().unwrap() <= 375, "{tab}: {width}");
    }
    // Nothing is fetched, nothing failed, and a failure would have been seen.
    let own = |url: &&String| url.contains("/report.html") || url.contains("data:");
    let foreign: Vec<&String> = browser.requested.iter().filter(|url| !own(url)).collect();
    assert!(foreign.is_empty() && !browser.requested.is_empty(), "{foreign:?}");
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    browser.value("console.error('planted'); setTimeout(() => { throw new Error('thrown'); })");
    browser.value("new Promise((done) => setTimeout(done, 50))");
    assert_eq!(browser.complaints.len(), 2, "{:#?}", browser.complaints);
}
