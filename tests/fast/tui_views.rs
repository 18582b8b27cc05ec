//! The pictures of `memspy top`: the profile's figures, keys, every size and terminal.

use std::time::Duration;

use crate::analysis_script::live_job::{GPU, LINEAR, device, job, live, usage};
use crate::analysis_script::{MIB, Script};
use memspy::analysis::{LiveProfile, lines};
use memspy::model::*;
use memspy::render;
use memspy::tui::{
    KeyAction, LastOwners, ListView, OwnersView, Palette, ViewModel, ViewState, draw,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

const FULL: Palette = Palette { color: true, unicode: true };

fn state() -> ViewState {
    ViewState::new(None, Duration::from_millis(250))
}

fn picture(live: &LiveProfile, state: &mut ViewState) -> ViewModel {
    ViewModel::new(live, state, false, false)
}

/// The picture as lines of text.
fn drawn(
    picture: &ViewModel,
    owners: &OwnersView,
    state: &mut ViewState,
    palette: Palette,
    (width, height): (u16, u16),
) -> Vec<String> {
    let terminal = screen(picture, owners, state, palette, (width, height));
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn screen(
    picture: &ViewModel,
    owners: &OwnersView,
    state: &mut ViewState,
    palette: Palette,
    (width, height): (u16, u16),
) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, picture, owners, state, palette)).unwrap();
    terminal
}

fn at(live: &LiveProfile, state: &mut ViewState, size: (u16, u16)) -> Vec<String> {
    let picture = picture(live, state);
    drawn(&picture, &OwnersView::default(), state, FULL, size)
}

fn press(state: &mut ViewState, code: KeyCode) -> KeyAction {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// The columns of the row whose name begins so.
#[track_caller]
fn row(lines: &[String], name: &str) -> Vec<String> {
    let found = lines.iter().find(|line| line.contains(&format!("  {name}")));
    let line = found.unwrap_or_else(|| panic!("no row {name} in\n{}", lines.join("\n")));
    let numbers = line.split(name).next().unwrap();
    let words: Vec<&str> = numbers.split_whitespace().collect();
    words.chunks(2).map(|pair| pair.join(" ")).collect()
}

#[test]
fn lines_show_what_the_profile_knows() {
    let live = live(&job());
    let lines = at(&live, &mut state(), (80, 24));
    assert!(lines[0].starts_with("memspy top  pid 42  python train.py"), "{}", lines[0]);
    assert!(lines[1].contains("Python 3.12.1, PyTorch 2.11.0+cu130"), "{}", lines[1]);
    assert!(lines[1].contains("200 Hz, 7 samples, 0 late, 0 torn"), "{}", lines[1]);
    // The process's 1000 MiB less the 427 MiB reserved then; 200 MiB of others.
    let legend = [
        "  █ alloc 407 MiB  ▒ cached 20.0 MiB",
        "  ░ outside 573 MiB  ▚ others 200 MiB  · free 848 MiB",
    ];
    assert_eq!(lines[3..5], legend, "{}", lines.join("\n"));
    // Library code belongs to the line that called it.
    let forward = row(&lines, "Net.forward (train.py:30)");
    assert_eq!(forward[..3], ["7.00 MiB", "7.00 MiB", "27.00 MiB"]);
    assert_eq!(row(&lines, "load (train.py:20)")[..3], ["100.00 MiB"; 3]);
    assert_eq!(row(&lines, "main (train.py:10)")[..2], ["0 B", "100.00 MiB"]);
    assert_eq!(row(&lines, "[before recording]")[..2], ["300.00 MiB"; 2]);
    assert!(!lines.iter().any(|line| line.contains("linear.py")));
    assert!(lines.iter().any(|line| line.contains("407.00 MiB in blocks")));
    assert!(lines.iter().any(|line| line.contains("peak: allocated 427 MiB, reserved 427 MiB")));

    // The job is 35 ms old: all of the chart but its last column, now, was before.
    let bottom = lines.iter().find(|line| line.starts_with("     0 B")).unwrap();
    assert_eq!((bottom.chars().count(), bottom.matches('█').count()), (80, 1), "{bottom}");

    let table = lines::table(live.profile(), GPU, &lines::default_columns()).unwrap();
    let names = |id| live.profile().stacks().get_function(id).unwrap().name.clone();
    let of = table.functions.iter().find(|f| &*names(f.function) == "load").unwrap();
    let peak = of.rows[0].cells[0].value;
    let shown = row(&lines, "load (train.py:20)")[3].clone();
    assert_eq!(shown.trim_start_matches('~'), render::signed_bytes(peak.value));
    assert_eq!(shown.starts_with('~'), !peak.exact);
}

#[test]
fn all_lines_are_those_of_libraries_too() {
    let live = live(&job());
    let mut state = state();
    press(&mut state, KeyCode::Char('a'));
    let lines = at(&live, &mut state, (120, 40));
    let inner = row(&lines, "Linear.forward (torch/nn/modules/linear.py:125)");
    assert_eq!(inner[..3], ["7.00 MiB", "7.00 MiB", "27.00 MiB"]);
    assert_eq!(row(&lines, "Net.forward (train.py:30)")[..2], ["0 B", "7.00 MiB"]);
}

#[test]
fn stacks_are_listed_from_the_inside() {
    let live = live(&job());
    let mut state = state();
    press(&mut state, KeyCode::Char('s'));
    let lines = at(&live, &mut state, (160, 24));
    let name = "Linear.forward (torch/nn/modules/linear.py:125) ← Net.forward (train.py:30) ← main (train.py:11) ← <module>";
    let found = row(&lines, name);
    assert_eq!(found, ["7.00 MiB", "1.7 %", "27.00 MiB"]);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    let lines = at(&live, &mut state, (160, 24));
    let whole = format!("Linear.forward ({LINEAR}:125)");
    assert!(lines.iter().any(|line| line.contains(&whole)), "{}", lines.join("\n"));
    assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::Nothing, "closes the window");
    assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::Quit);
}

fn held(category: TensorCategory, owner: &str, bytes: u64) -> OwnedStorages {
    OwnedStorages { category, owner: owner.into(), bytes, count: 1 }
}

fn owners() -> OwnersView {
    let snapshot = OwnershipBreakdown {
        time: Nanos(0),
        pause: Some(Nanos(43_210_000)),
        age: Nanos(0),
        unnamed_blocks: Vec::new(),
        blocks: Vec::new(),
        retained: Vec::new(),
        devices: vec![DeviceOwners {
            device: GPU,
            allocated: 407 * MIB,
            rounding: MIB,
            without_tensor: 6 * MIB,
            results: Some(0),
            held: vec![
                held(TensorCategory::Parameter, "b.weight", 100 * MIB),
                held(TensorCategory::Parameter, "a.weight", 200 * MIB),
                held(TensorCategory::Other, "main: batch", 100 * MIB),
            ],
        }],
    };
    let mut stops = StopTotals::default();
    stops.add(Duration::from_millis(20));
    stops.add(Duration::from_micros(43_200));
    OwnersView {
        looking: false,
        last: Some(Ok(LastOwners { snapshot, age: Duration::from_secs(3), stops })),
    }
}

#[test]
fn holders_are_listed_by_category_with_the_pause_they_cost() {
    let live = live(&job());
    let mut state = state();
    assert_eq!(press(&mut state, KeyCode::Char('h')), KeyAction::ReadOwners);
    let now = picture(&live, &mut state);
    let lines = drawn(&now, &OwnersView::default(), &mut state, FULL, (80, 24));
    assert!(lines.iter().any(|line| line == "press h to read the owners"));
    let lines = drawn(&now, &owners(), &mut state, FULL, (80, 24));
    let title = "By owner: 407.00 MiB 3.0 s ago; the job was stopped for 43.2 ms (2 stops)";
    assert!(lines.iter().any(|line| line.starts_with(&title[..60])), "{}", lines.join("\n"));
    let list: Vec<&str> = lines
        .iter()
        .skip_while(|line| !line.contains("OWNER"))
        .skip(1)
        .map(|line| line.trim())
        .take_while(|line| !line.is_empty())
        .collect();
    let expected = [
        "300.00 MiB   73.7 %         2  parameters",
        "200.00 MiB   49.1 %         1    a.weight",
        "100.00 MiB   24.6 %         1    b.weight",
        "100.00 MiB   24.6 %         1  other tensors",
        "100.00 MiB   24.6 %         1    main: batch",
        "6.00 MiB    1.5 %         -  [in no tensor]",
        "1.00 MiB    0.2 %         -  [rounding]",
    ];
    assert_eq!(list, expected);
    let failed = OwnersView { looking: false, last: Some(Err("it is traced by gdb".into())) };
    let lines = drawn(&now, &failed, &mut state, FULL, (80, 24));
    let why = "cannot read the owners: it is traced by gdb";
    assert!(lines.iter().any(|line| line == why));
}

#[test]
fn m_marks_a_moment_and_a_column_shows_changes_since() {
    let live = live(&job());
    let mut state = state();
    press(&mut state, KeyCode::Char('h'));
    let now = picture(&live, &mut state);
    let lines = drawn(&now, &owners(), &mut state, FULL, (100, 24));
    assert!(!lines.iter().any(|line| line.contains("SINCE m")), "{}", lines.join("\n"));
    press(&mut state, KeyCode::Char('m'));
    drawn(&now, &owners(), &mut state, FULL, (100, 24));
    let mut grown = owners();
    if let Some(Ok(LastOwners { snapshot, .. })) = &mut grown.last {
        snapshot.devices[0].held[2].bytes += 24 * MIB;
        snapshot.devices[0].held.push(held(TensorCategory::Other, "main: new", 7 * MIB));
    }
    let lines = drawn(&now, &grown, &mut state, FULL, (100, 24)).join("\n");
    for (owner, change) in
        [("main: batch", "+24.00 MiB"), ("main: new", "+7.00 MiB"), ("a.weight", "0 B")]
    {
        let row = lines.lines().find(|line| line.contains(owner)).unwrap();
        assert!(row.contains(change), "{owner} {change}: {lines}");
    }
    assert!(lines.contains("SINCE m"), "{lines}");
}

#[test]
fn unknown_is_shown_as_unknown() {
    let mut script = job();
    let why = "the driver does not list this process";
    let record = usage(&script, 0, ProcessUsage::Unknown(why.into()));
    script.records.push(record);
    // The reason appears once NVML has had time to answer.
    script.now += 3_000_000_000;
    script.tick();
    let lines = at(&live(&script), &mut state(), (160, 24)).join("\n");
    assert!(lines.contains("outside PyTorch unknown  ▚ other processes unknown"), "{lines}");
    assert!(lines.contains(why), "{lines}");
    assert!(lines.contains("▒???"), "what is in use by somebody is not drawn as free: {lines}");

    let mut script = Script::new(100);
    script.records.push(Record::Runtime(TargetRuntime {
        time: Nanos(0),
        python: Some("3.12.1".into()),
        torch: None,
        allocator: AllocatorBackend::NotLoaded,
    }));
    script.thread("MainThread", true);
    script.enter(0, "main", 1);
    script.tick();
    script.tick();
    let lines = at(&live(&script), &mut state(), (100, 24)).join("\n");
    assert!(lines.contains("No GPU is known."), "{lines}");
    assert!(lines.contains("nothing is known of PyTorch's memory on a GPU yet"), "{lines}");
    assert!(lines.contains("no PyTorch") && lines.contains("waiting for it"), "{lines}");
    assert!(!lines.contains("0 B"), "{lines}");
}

#[test]
fn every_size_is_served_without_a_panic() {
    let mut script = job();
    for gpu in 1..8 {
        script.records.push(device(gpu));
        script.alloc(0, gpu, MIB);
    }
    script.tick();
    script.tick();
    let live = live(&script);
    let mut state = state();
    let whole = ViewModel::new(&live, &mut state, false, true);
    for keys in ["", "?", "l\n", "s", "s\n", "h", "h\n"] {
        for width in
            [0, 1, 2, 3, 7, 9, 10, 11, 15, 20, 28, 33, 39, 40, 41, 59, 60, 79, 80, 81, 132, 250]
        {
            for height in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 24, 25, 50, 100] {
                for key in keys.chars() {
                    let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
                    press(&mut state, code);
                }
                for code in [KeyCode::End, KeyCode::PageUp, KeyCode::Down] {
                    drawn(&whole, &owners(), &mut state, FULL, (width, height));
                    press(&mut state, code);
                }
                press(&mut state, KeyCode::Enter);
                if keys.contains('\n') {
                    press(&mut state, KeyCode::Enter);
                }
            }
        }
    }
}

#[test]
fn forty_columns_and_ten_rows_keep_what_matters() {
    let lines = at(&live(&job()), &mut state(), (40, 10));
    assert!(lines[0].starts_with("memspy top  pid 42"), "{}", lines[0]);
    assert!(lines.iter().any(|line| line.contains("alloc 407 MiB  ▒ cached 20.0 MiB")));
    assert_eq!(row(&lines, "[before recording]"), ["300.00 MiB"]);
    assert!(lines[9].starts_with("q quit ? help l lines s stacks h owners"), "{}", lines[9]);
    assert_eq!(row(&lines, "load (train.py:20)"), ["100.00 MiB"]);
}

#[test]
fn terminals_without_colours_or_unicode_get_neither() {
    let live = live(&job());
    let mut state = state();
    let picture = picture(&live, &mut state);
    let plain = Palette { color: false, unicode: false };
    for help in [false, true] {
        if help {
            press(&mut state, KeyCode::Char('?'));
        }
        let terminal = screen(&picture, &owners(), &mut state, plain, (80, 24));
        for cell in &terminal.backend().buffer().content {
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
            assert!(cell.symbol().is_ascii(), "{}", cell.symbol());
        }
    }
    press(&mut state, KeyCode::Char('x'));
    let terminal = screen(&picture, &owners(), &mut state, FULL, (80, 24));
    let of_16 =
        |color| !matches!(color, Color::Rgb(..) | Color::Indexed(_) | Color::White | Color::Black);
    let cells = &terminal.backend().buffer().content;
    assert!(cells.iter().all(|cell| of_16(cell.fg) && cell.bg == Color::Reset));
    assert!(cells.iter().any(|cell| cell.fg != Color::Reset));
}

#[test]
fn columns_sort_and_reverse() {
    let live = live(&job());
    let mut state = state();
    let first = |state: &mut ViewState| {
        let lines = at(&live, state, (100, 30));
        let at = lines.iter().position(|line| line.contains("LINE PEAK")).unwrap();
        (lines[at].clone(), lines[at + 1].split("  ").last().unwrap().to_owned())
    };
    let (heads, row) = first(&mut state);
    assert!(heads.contains("OWN▼") && row == "[before recording]", "{heads} {row}");
    press(&mut state, KeyCode::Char('>'));
    press(&mut state, KeyCode::Char('>'));
    assert!(first(&mut state).0.contains("AT PEAK▼"));
    press(&mut state, KeyCode::Char('r'));
    let (heads, row) = first(&mut state);
    assert!(heads.contains("AT PEAK▲") && row.starts_with("main (train.py:12)"), "{heads} {row}");
    press(&mut state, KeyCode::Char('5'));
    let (heads, row) = first(&mut state);
    assert!(heads.trim_end().ends_with("LINE▼") && row == "<module> (train.py:40)", "{row}");
    press(&mut state, KeyCode::Char('5'));
    let (heads, row) = first(&mut state);
    assert!(heads.trim_end().ends_with("LINE▲") && row == "main (train.py:12)", "{row}");
    for _ in 0..9 {
        press(&mut state, KeyCode::Char('<'));
    }
    assert!(first(&mut state).0.contains("OWN▲"));
}

#[test]
fn the_list_scrolls_to_its_ends_and_no_further() {
    let live = live(&job());
    let mut state = state();
    press(&mut state, KeyCode::Char('a'));
    let title = |state: &mut ViewState| at(&live, state, (80, 12))[4].clone();
    assert!(title(&mut state).contains("1-4 of 8"), "{}", title(&mut state));
    press(&mut state, KeyCode::End);
    assert!(title(&mut state).contains("5-8 of 8"), "{}", title(&mut state));
    for _ in 0..3 {
        press(&mut state, KeyCode::Down);
        assert!(title(&mut state).contains("5-8 of 8"));
    }
    press(&mut state, KeyCode::PageUp);
    assert!(title(&mut state).contains("5-8 of 8"), "the chosen row is still among them");
    press(&mut state, KeyCode::Up);
    assert!(title(&mut state).contains("4-7 of 8"), "{}", title(&mut state));
    press(&mut state, KeyCode::Home);
    assert!(title(&mut state).contains("1-4 of 8"));
}

#[test]
fn windows_scroll_where_they_do_not_fit() {
    let live = live(&job());
    let mut state = state();
    press(&mut state, KeyCode::Char('?'));
    let top = at(&live, &mut state, (80, 10));
    assert!(top[0].contains("memspy top (1-8 of 16)"), "{}", top[0]);
    press(&mut state, KeyCode::End);
    let end = at(&live, &mut state, (80, 10));
    assert!(end[0].contains("(9-16 of 16)"), "{}", end[0]);
    assert!(end[8].contains("~ at least"), "{}", end[8]);
    press(&mut state, KeyCode::Up);
    assert!(at(&live, &mut state, (80, 10))[0].contains("(8-15 of 16)"));
    press(&mut state, KeyCode::Char('x'));
    press(&mut state, KeyCode::Char('s'));
    at(&live, &mut state, (80, 24));
    press(&mut state, KeyCode::Enter);
    let window = at(&live, &mut state, (80, 24)).join("\n");
    assert!(window.contains("innermost first:"), "{window}");
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Char('r'));
    let again = at(&live, &mut state, (80, 24)).join("\n");
    assert!(
        again.contains("300.00 MiB now"),
        "it stays with its row when the order changes: {again}"
    );
}

#[test]
fn a_frozen_picture_stays_whatever_is_asked_of_it() {
    let mut script = job();
    let mut live = live(&script);
    let mut state = state();
    press(&mut state, KeyCode::Char(' '));
    assert!(state.frozen);
    let frozen = ViewModel::new(&live, &mut state, false, true);
    let shown = |state: &mut ViewState| {
        drawn(&frozen, &OwnersView::default(), state, FULL, (100, 30)).join("\n")
    };
    let lines = shown(&mut state);
    assert!(lines.contains("FROZEN") && lines.contains("frozen: space continues"), "{lines}");
    let seen = script.records.len();
    script.alloc(0, 0, 500 * MIB);
    script.tick();
    script.map(0);
    script.tick();
    for record in &script.records[seen..] {
        live.record(record).unwrap();
    }
    assert!(at(&live, &mut state, (100, 30)).join("\n").contains("alloc 907 MiB"));
    for key in ['s', 'l', 'a', 'l'] {
        press(&mut state, KeyCode::Char(key));
        let lines = shown(&mut state);
        assert!(lines.contains("407.00 MiB in blocks"), "{key}: {lines}");
    }
    press(&mut state, KeyCode::Char('p'));
    assert!(!state.frozen);
}

#[test]
fn devices_are_chosen_one_after_the_other() {
    let mut script = job();
    script.records.push(device(1));
    script.alloc(0, 1, 50 * MIB);
    script.tick();
    script.map(1);
    script.tick();
    let live = live(&script);
    let mut state = state();
    let peak = |state: &mut ViewState| at(&live, state, (80, 30)).join("\n");
    let first = peak(&mut state);
    assert!(first.contains("GPU 0 [") && first.contains("GPU 1 ["), "{first}");
    assert!(first.contains("peak: allocated 427 MiB"), "{first}");
    press(&mut state, KeyCode::Char('g'));
    let second = peak(&mut state);
    assert!(second.contains("peak: allocated 50.0 MiB"), "{second}");
    assert_eq!(row(&at(&live, &mut state, (80, 30)), "[before recording]")[0], "50.00 MiB");
    press(&mut state, KeyCode::Char('g'));
    assert!(peak(&mut state).contains("peak: allocated 427 MiB"));
    let mut state = ViewState::new(Some(CudaIndex(7)), Duration::from_secs(1));
    assert!(
        peak(&mut state).contains("nothing is known of PyTorch's memory on GPU 7; g goes to GPU 0")
    );
    press(&mut state, KeyCode::Char('g'));
    assert!(peak(&mut state).contains("peak: allocated 427 MiB"));
}

#[test]
fn the_last_picture_says_how_it_ended() {
    let live = live(&job());
    let mut state = state();
    let mut picture = picture(&live, &mut state);
    picture.end("the job has ended".to_owned());
    let lines = drawn(&picture, &OwnersView::default(), &mut state, FULL, (80, 24));
    assert!(lines[0].contains("ENDED"), "{}", lines[0]);
    assert!(lines[22].contains("the job has ended; this is the last picture. q quits"));
    assert_eq!(row(&lines, "load (train.py:20)")[0], "100.00 MiB");
}

#[test]
fn intervals_and_the_ways_to_quit() {
    let mut state = state();
    for (key, millis) in [('+', 500), ('=', 1000), ('-', 500), ('-', 250), ('-', 100), ('-', 100)] {
        press(&mut state, KeyCode::Char(key));
        assert_eq!(state.interval, Duration::from_millis(millis));
    }
    assert_eq!(press(&mut state, KeyCode::Char('q')), KeyAction::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.key(interrupt), KeyAction::Quit);
    press(&mut state, KeyCode::Char('?'));
    assert_eq!(press(&mut state, KeyCode::Char('x')), KeyAction::Nothing, "closes the help");
    assert_eq!(state.view, ListView::Lines);
}

#[test]
fn a_restarted_recording_keeps_sums_marks_and_the_past() {
    let script = job();
    let mut live = live(&script);
    let (elapsed, samples) = (live.elapsed(), live.counts().samples);
    assert!(!live.is_full());
    live.reset();
    assert_eq!((live.renewed(), live.elapsed()), (1, elapsed));
    // The next recording's numbers and clock begin at 0; the allocator's peak was reset meanwhile.
    let mut second = Script::new(200);
    second.records.push(device(0));
    second.thread("MainThread", true);
    second.enter(0, "main", 12);
    second.alloc(0, 0, 407 * MIB);
    second.tick();
    second.map(0);
    second.tick();
    for record in &second.records {
        live.record(record).unwrap();
    }
    assert_eq!(live.counts().samples, samples + 2);
    assert_eq!(live.marks(GPU).unwrap().allocated, 427 * MIB as i64);
    assert!(live.elapsed() > elapsed);
    let (_, columns) = live.recent(GPU).unwrap().columns(live.elapsed(), 10);
    assert_eq!(columns.last().unwrap().unwrap().allocated, 427 * MIB as i64);
    let lines = at(&live, &mut state(), (120, 24)).join("\n");
    assert!(lines.contains("started over 1 time"), "{lines}");
    assert_eq!(row(&at(&live, &mut state(), (80, 24)), "[before recording]")[0], "407.00 MiB");
}
