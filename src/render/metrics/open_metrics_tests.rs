//! The exporter's text with hostile names.

use super::*;

fn job(gpu: ExportedGpu) -> ExportedJob {
    ExportedJob {
        pid: 7,
        command: "python train.py".to_owned(),
        gpus: vec![gpu],
        ..Default::default()
    }
}

fn text(job: ExportedJob) -> String {
    metrics_text(&[job], MetricsFormat::OpenMetrics).unwrap()
}

fn named(name: &str, bytes: u64) -> NamedBytes {
    NamedBytes { name: name.to_owned(), category: None, bytes }
}

#[test]
fn unknown_figures_have_no_series() {
    let gpu =
        ExportedGpu { gpu: Some(0), allocated: Some(512), ooms: Some(3), ..Default::default() };
    let text = text(ExportedJob { rank: Some(2), ..job(gpu) });
    for line in [
        "# TYPE memspy_allocated_bytes gauge",
        "# UNIT memspy_allocated_bytes bytes",
        "memspy_allocated_bytes{pid=\"7\",rank=\"2\",gpu=\"0\"} 512",
        "# TYPE memspy_ooms counter",
        "memspy_ooms_total{pid=\"7\",rank=\"2\",gpu=\"0\"} 3",
    ] {
        assert!(text.lines().any(|it| it == line), "no '{line}' in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    for unknown in ["reserved", "outside", "device_free", "fragmentation", "line", "owner"] {
        assert!(!text.contains(&format!("memspy_{unknown}")), "{unknown} is not known:\n{text}");
    }
}

#[test]
fn a_hostile_name_stays_inside_its_label() {
    let hostile = "evil\"} 1\n# EOF\nmemspy_ooms_total{a=\"\\\u{1b}[31m";
    let gpu = ExportedGpu { lines: vec![named(hostile, 1)], ..Default::default() };
    let text = text(ExportedJob { command: hostile.to_owned(), ..job(gpu) });
    assert_eq!(text.matches("# EOF").count(), 1 + 2, "two in labels, one at the end:\n{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.iter().all(|line| line.starts_with("# ") || line.starts_with("memspy_")),
        "{text}"
    );
    assert!(lines.iter().all(|line| !line.starts_with("memspy_ooms")), "{text}");
    // Quotes inside a value are escaped.
    for line in lines.iter().filter(|line| line.starts_with("memspy_")) {
        let bare = line.replace("\\\\", "").replace("\\\"", "");
        assert_eq!(bare.matches('"').count() % 2, 0, "{line}");
    }
}

#[test]
fn names_cut_to_equal_labels_share_a_series() {
    let long = "x".repeat(5_000);
    let rows = vec![named(&format!("{long}1"), 1), named(&format!("{long}2"), 2)];
    let text = text(job(ExportedGpu { owners: rows, ..Default::default() }));
    let series: Vec<&str> = text.lines().filter(|line| line.starts_with("memspy_owner")).collect();
    assert_eq!(series.len(), 1, "{text}");
    assert!(series[0].ends_with(" 3") && series[0].len() < 1_000, "{}", series[0]);
}

#[test]
fn fragmentation_is_unknown_where_nothing_is_free() {
    let gpu = |free, largest| ExportedGpu {
        cached_free: Some(free),
        largest_free: Some(largest),
        ..Default::default()
    };
    assert_eq!(gpu(0, 0).fragmentation(), None);
    assert_eq!(gpu(400, 100).fragmentation(), Some(0.75));
    assert_eq!(gpu(400, 400).fragmentation(), Some(0.0));
    assert_eq!(ExportedGpu::default().fragmentation(), None);
}

#[test]
fn the_older_format_names_counters_by_their_series() {
    let gpu = ExportedGpu { ooms: Some(3), allocated: Some(1), ..Default::default() };
    let text = metrics_text(&[job(gpu)], MetricsFormat::Prometheus).unwrap();
    assert!(
        text.contains("# TYPE memspy_ooms_total counter\nmemspy_ooms_total{pid=\"7\"} 3\n"),
        "{text}"
    );
    assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
}
