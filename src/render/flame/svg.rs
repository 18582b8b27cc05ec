//! A tree of frames as a self-contained SVG.
//!
//! inferno gives a frame one plain colour. That colour stands for what the frame is and how it is
//! known; the style, which is put into inferno's own, draws it: hatched where bytes are not proven,
//! darker in a dark browser. A reader without style sheets shows the plain colours.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap, SearchColor};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection, from_lines};

use super::frame_tree::{DrawnStack, FrameKind, FrameNode, FrameSize, FrameTree};
use crate::render::shared::{OutputError, percent, short_bytes, short_signed_bytes};

/// What stands above the frames, and how they are drawn.
pub(super) struct SvgPage<'a> {
    pub(super) title: String,
    pub(super) subtitle: String,
    /// Before the details of a frame: `Line:`.
    pub(super) name_type: &'a str,
    pub(super) inverted: bool,
    /// The smallest frame, in percent of the whole.
    pub(super) min_width: Option<f64>,
    /// Colours show the difference from another recording.
    pub(super) is_difference: bool,
}

/// How the bytes of a frame are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FrameEvidence {
    /// All proven, or not of the recording.
    Plain,
    /// Of several kinds.
    Mixed,
    Probable,
    Unattributed,
}

impl FrameEvidence {
    fn of(size: &FrameSize) -> FrameEvidence {
        match (size.proven, size.probable) {
            (proven, _) if proven == size.told => FrameEvidence::Plain,
            (0, 0) => FrameEvidence::Unattributed,
            (0, probable) if probable == size.told => FrameEvidence::Probable,
            _ => FrameEvidence::Mixed,
        }
    }

    fn word(self) -> &'static str {
        match self {
            FrameEvidence::Plain => "proven",
            FrameEvidence::Mixed => "mixed",
            FrameEvidence::Probable => "probable",
            FrameEvidence::Unattributed => "unattributed",
        }
    }
}

/// Colours of a frame: light, dark.
type Fill = ((u8, u8, u8), &'static str);

/// Of the program, by name.
const OWN: [Fill; 5] = [
    ((236, 170, 141), "#713e28"),
    ((236, 182, 141), "#714828"),
    ((236, 195, 141), "#715128"),
    ((236, 208, 141), "#715b28"),
    ((236, 221, 141), "#716528"),
];
const OWN_PATTERNS: Fill = OWN[2];
const LIBRARY: Fill = ((165, 191, 224), "#35567f");
const MARK: Fill = ((220, 220, 220), "#4a4a4a");
const WHOLE: Fill = ((236, 238, 241), "#262b32");
/// More than in the other recording, as much, less: ColorBrewer's RdBu, safe for the colour-blind.
const MORE: [Fill; 3] =
    [((253, 219, 199), "#5c3327"), ((244, 165, 130), "#8a412d"), ((214, 96, 77), "#b84a33")];
const AS_MUCH: Fill = ((240, 240, 240), "#33383e");
const LESS: [Fill; 3] =
    [((209, 229, 240), "#213c4d"), ((146, 197, 222), "#285a78"), ((67, 147, 195), "#2f7aa8")];
/// Parts of the largest difference from which a colour is stronger.
const STRONGER: [f64; 2] = [0.05, 0.33];
const SEARCH: Color = Color { r: 122, g: 31, b: 162 };
const GROUND: (&str, &str) = ("#ffffff", "#14171b");
const TEXT: (&str, &str) = ("#16191d", "#f1f3f5");
const SOFT: (&str, &str) = ("#5c6570", "#9aa4b0");

/// In pixels.
const ROW: usize = 18;
const LEGEND_Y: f64 = 64.0;
const LETTER: f64 = 7.1;

const PATTERNED: [FrameEvidence; 3] =
    [FrameEvidence::Mixed, FrameEvidence::Probable, FrameEvidence::Unattributed];

/// One per look: patterns differ in the lowest digits, so that the style can tell them apart.
fn color_of(node: &FrameNode) -> Color {
    let color = |(r, g, b): (u8, u8, u8), step: u8| Color { r, g, b: b + step };
    let evidence = FrameEvidence::of(&node.size);
    match (node.frame.kind, evidence) {
        (FrameKind::Mark, _) => color(MARK.0, 0),
        (FrameKind::Own, FrameEvidence::Plain) => {
            let shade = OWN[hash(&node.frame.name) % OWN.len()];
            color(shade.0, 0)
        }
        (FrameKind::Own, evidence) => color(OWN_PATTERNS.0, evidence as u8),
        (FrameKind::Library, evidence) => color(LIBRARY.0, evidence as u8),
    }
}

/// `largest`: the largest difference of a frame.
fn difference_color(size: &FrameSize, largest: u64) -> Color {
    let change = size.bytes.abs_diff(size.before);
    let part = change as f64 / largest.max(1) as f64;
    let strength = STRONGER.iter().filter(|least| part >= **least).count();
    let (r, g, b) = match size.bytes.cmp(&size.before) {
        Ordering::Greater => MORE[strength].0,
        Ordering::Equal => AS_MUCH.0,
        Ordering::Less => LESS[strength].0,
    };
    Color { r, g, b }
}

/// The same in every picture (FNV-1a).
fn hash(name: &str) -> usize {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    name.bytes().fold(2_166_136_261, step) as usize
}

/// The difference in front: boxes are cut on the right.
fn label(node: &FrameNode, whole: u64, is_difference: bool) -> String {
    let FrameSize { bytes, before, .. } = node.size;
    let share = percent(bytes, whole);
    let size = match is_difference {
        true => {
            let change = i64::try_from(i128::from(bytes) - i128::from(before)).unwrap_or(i64::MAX);
            let sign = if change > 0 { "+" } else { "" };
            format!("{sign}{}, now {}", short_signed_bytes(change), short_bytes(bytes))
        }
        false => format!("{} · {share:.1} %", short_bytes(bytes)),
    };
    let place = node.frame.place.as_deref().map(|place| format!(" ({place})"));
    format!("{} · {size}{}", node.frame.name, place.unwrap_or_default())
}

/// Stacks in inferno's format, the largest first, with the colour of each frame.
fn lines(tree: &FrameTree, is_difference: bool) -> (Vec<String>, PaletteMap) {
    let whole = tree.node(0).size.bytes;
    let frames = tree.nodes()[1..].iter();
    let largest = frames.map(|node| node.size.bytes.abs_diff(node.size.before)).max().unwrap_or(0);
    let (mut lines, mut palette) = (Vec::new(), PaletteMap::default());
    // inferno's root has no name.
    let (r, g, b) = WHOLE.0;
    palette.insert("", Color { r, g, b });
    let mut path: Vec<String> = Vec::new();
    let mut open: Vec<(usize, usize)> = vec![(0, 0)];
    while let Some((at, depth)) = open.pop() {
        let node = tree.node(at);
        path.truncate(depth.saturating_sub(1));
        if at != 0 {
            let label = label(node, whole, is_difference);
            let color = match is_difference {
                true => difference_color(&node.size, largest),
                false => color_of(node),
            };
            palette.insert(&label, color);
            path.push(label);
        }
        if node.own.bytes > 0 && at != 0 {
            lines.push(format!("{} {}", path.join(";"), node.own.bytes));
        }
        open.extend(tree.children(at).into_iter().rev().map(|child| (child, depth + 1)));
    }
    (lines, palette)
}

/// Draws stacks.
pub(super) fn svg(stacks: &[DrawnStack], page: SvgPage<'_>) -> Result<Vec<u8>, OutputError> {
    let tree = FrameTree::new(stacks, page.inverted);
    let (mut lines, mut palette) = lines(&tree, page.is_difference);
    let mut options = Options::default();
    options.title = page.title;
    options.subtitle = Some(page.subtitle);
    options.name_type = page.name_type.to_owned();
    let legend = legend(&tree, page.name_type, page.is_difference);
    options.count_name = "bytes".to_owned();
    if let Some(percent) = page.min_width {
        options.min_width = percent;
    }
    options.palette_map = Some(&mut palette);
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 255, g: 255, b: 255 }));
    let search = format!("#{:02x}{:02x}{:02x}", SEARCH.r, SEARCH.g, SEARCH.b);
    if let Ok(color) = search.parse::<SearchColor>() {
        options.search_color = color;
    }
    options.direction = Direction::Inverted;
    options.frame_height = ROW;
    options.text_truncate_direction = TextTruncateDirection::Right;
    // Keeps the order: inferno reverses it back.
    options.flame_chart = true;
    lines.reverse();
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    Ok(with_style(svg, &legend))
}

/// Puts the style at the end of inferno's, and the legend before the frames.
fn with_style(svg: Vec<u8>, legend: &str) -> Vec<u8> {
    let additions =
        [("</style>", style()), ("<svg id=\"frames\"", legend.to_owned() + &patterns())];
    additions.into_iter().fold(svg, |svg, (before, text)| {
        let at = svg.windows(before.len()).position(|part| part == before.as_bytes());
        match at {
            Some(at) => [&svg[..at], text.as_bytes(), &svg[at..]].concat(),
            None => svg,
        }
    })
}

fn rgb((r, g, b): (u8, u8, u8), step: u8) -> String {
    format!("rgb({r},{g},{})", b + step)
}

/// The pattern of a frame that is not plain.
fn pattern_name(kind: &str, evidence: FrameEvidence) -> String {
    format!("{kind}-{}", evidence.word())
}

const KINDS: [(&str, Fill); 2] = [("program", OWN_PATTERNS), ("library", LIBRARY)];

fn patterns() -> String {
    let mut text = "<defs>".to_owned();
    for (kind, (light, _)) in KINDS {
        for evidence in PATTERNED {
            let (size, ink) = match evidence {
                FrameEvidence::Probable => {
                    (6, "<rect class=\"ink\" width=\"2\" height=\"6\" fill-opacity=\"0.25\"/>")
                }
                FrameEvidence::Mixed => {
                    (16, "<rect class=\"ink\" width=\"2\" height=\"16\" fill-opacity=\"0.18\"/>")
                }
                _ => {
                    (6, "<circle class=\"ink\" cx=\"3\" cy=\"3\" r=\"1.2\" fill-opacity=\"0.35\"/>")
                }
            };
            let name = pattern_name(kind, evidence);
            let fill = rgb(light, 0);
            let _ = write!(
                text,
                "<pattern id=\"{name}\" width=\"{size}\" height=\"{size}\" patternUnits=\"userSpaceOnUse\" \
                 patternTransform=\"rotate(45)\"><rect class=\"{kind}\" width=\"{size}\" height=\"{size}\" \
                 fill=\"{fill}\"/>{ink}</pattern>"
            );
        }
    }
    text + "</defs>"
}

fn style() -> String {
    let search = format!("[fill=\"{}\"]", rgb((SEARCH.r, SEARCH.g, SEARCH.b), 0));
    let mut text = format!(
        "
text {{ fill:{ink}; }}
#subtitle, #details, #legend text {{ fill:{soft}; }}
#search, #unzoom {{ opacity:1; text-decoration:underline; }}
#frames > g > rect {{ stroke:{ground}; stroke-width:1; }}
#frames > g:hover > rect {{ stroke:{ink}; }}
#frames > *:hover {{ stroke:none; }}
#frames text {{ paint-order:stroke; stroke:{ground}; stroke-width:3px; stroke-opacity:0.55; }}
#frames rect{search} + text {{ fill:#ffffff; stroke:none; }}
svg:has(#search.show) #frames rect:not({search}) {{ opacity:0.35; }}
svg:has(#frames > *:hover) #legend {{ display:none; }}
",
        ink = TEXT.0,
        soft = SOFT.0,
        ground = GROUND.0,
    );
    for (kind, (light, _)) in KINDS {
        for evidence in PATTERNED {
            let (fill, name) = (rgb(light, evidence as u8), pattern_name(kind, evidence));
            let _ = writeln!(text, "rect[fill=\"{fill}\"] {{ fill:url(#{name}); }}");
        }
    }
    text + &dark_style()
}

fn dark_style() -> String {
    let mut text = format!(
        "@media (prefers-color-scheme: dark) {{
#background stop {{ stop-color:{ground}; }}
text {{ fill:{ink}; }}
#subtitle, #details, #legend text {{ fill:{soft}; }}
#frames > g > rect, #frames text {{ stroke:{ground}; }}
#frames > g:hover > rect {{ stroke:{ink}; }}
.ink {{ fill:#ffffff; }}
",
        ground = GROUND.1,
        ink = TEXT.1,
        soft = SOFT.1,
    );
    let differences = MORE.into_iter().chain([AS_MUCH]).chain(LESS);
    for (light, dark) in OWN.into_iter().chain([LIBRARY, MARK, WHOLE]).chain(differences) {
        let _ = writeln!(text, "rect[fill=\"{}\"] {{ fill:{dark}; }}", rgb(light, 0));
    }
    text + "}\n"
}

/// Colours say what a frame is, patterns how its bytes are known.
fn meanings(tree: &FrameTree, name_type: &str) -> Vec<(Option<String>, &'static str)> {
    let (own, mark) = match name_type {
        "Owner:" => ("owners", "no owner"),
        "Module:" => ("modules", "no module"),
        _ => ("the program", "no line of Python"),
    };
    let frames = &tree.nodes()[1..];
    let kinds: BTreeSet<FrameKind> = frames.iter().map(|node| node.frame.kind).collect();
    let coded = frames.iter().filter(|node| node.size.told > 0);
    let coded = coded.filter(|node| node.frame.kind != FrameKind::Mark);
    let known: BTreeSet<FrameEvidence> = coded.map(|node| FrameEvidence::of(&node.size)).collect();
    let mut entries = Vec::new();
    for kind in kinds {
        entries.push(match kind {
            FrameKind::Own => (Some(rgb(OWN_PATTERNS.0, 0)), own),
            FrameKind::Library => (Some(rgb(LIBRARY.0, 0)), "libraries"),
            FrameKind::Mark => (Some(rgb(MARK.0, 0)), mark),
        });
    }
    for evidence in known {
        entries.push(match evidence {
            FrameEvidence::Plain => (None, "plain: proven"),
            _ => (Some(rgb(LIBRARY.0, evidence as u8)), evidence.word()),
        });
    }
    entries
}

/// What the colours and patterns of this picture mean.
fn legend(tree: &FrameTree, name_type: &str, is_difference: bool) -> String {
    let entries = match is_difference {
        true => [(MORE[2], "more than in the other"), (AS_MUCH, "as much"), (LESS[2], "less")]
            .map(|((light, _), word)| (Some(rgb(light, 0)), word))
            .into(),
        false => meanings(tree, name_type),
    };
    let mut text = "<g id=\"legend\">".to_owned();
    let mut x = 10.0;
    for (fill, word) in entries {
        let top = LEGEND_Y - 10.0;
        if let Some(fill) = fill {
            let _ = write!(
                text,
                "<rect x=\"{x:.1}\" y=\"{top}\" width=\"22\" height=\"12\" fill=\"{fill}\"/>"
            );
            x += 28.0;
        }
        let _ = write!(text, "<text x=\"{x:.1}\" y=\"{LEGEND_Y}\">{word}</text>");
        x += LETTER * (word.len() as f64 + 2.5);
    }
    text + "</g>"
}

#[cfg(test)]
mod tests {
    use super::super::frame_tree::DrawnFrame;
    use super::*;

    fn stack(names: &[(&str, FrameKind)], size: FrameSize) -> DrawnStack {
        let frame = |(name, kind): &(&str, FrameKind)| DrawnFrame {
            kind: *kind,
            place: Some("a.py:1".to_owned()),
            ..DrawnFrame::mark(name)
        };
        DrawnStack { path: names.iter().map(frame).collect(), size }
    }

    fn drawn(stacks: &[DrawnStack]) -> String {
        let page = SvgPage {
            title: "Title".to_owned(),
            subtitle: "Subtitle".to_owned(),
            name_type: "Line:",
            inverted: false,
            min_width: None,
            is_difference: false,
        };
        String::from_utf8(svg(stacks, page).unwrap()).unwrap()
    }

    fn fill<'a>(svg: &'a str, name: &str) -> &'a str {
        let after = svg.split(&format!("<title>{name} · ")).nth(1).unwrap();
        after.split("fill=\"").nth(1).unwrap().split('"').next().unwrap()
    }

    fn told(bytes: u64, proven: u64, probable: u64) -> FrameSize {
        FrameSize { told: bytes, proven, probable, ..FrameSize::of(bytes) }
    }

    #[test]
    fn boxes_say_bytes_and_share_and_the_largest_is_first() {
        use FrameKind::{Library, Mark, Own};
        let text = drawn(&[
            stack(&[("main", Own), ("small", Own)], told(1 << 20, 1 << 20, 0)),
            stack(&[("main", Own), ("large", Library)], told(3 << 20, 3 << 20, 0)),
            stack(&[("[before recording]", Mark)], FrameSize::of(2 << 20)),
        ]);
        let title = "large · 3.00 MiB · 50.0 % (a.py:1) (3,145,728 bytes, 50.00%)";
        assert!(text.contains(&format!("<title>{title}</title>")), "{text}");
        let x = |name: &str| {
            let after = text.split(&format!("<title>{name} · ")).nth(1).unwrap();
            after.split("fg:x=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        assert_eq!((x("large"), x("small")), ("0".to_owned(), (3 << 20).to_string()));
        assert_eq!(fill(&text, "large"), rgb(LIBRARY.0, 0));
        assert_eq!(fill(&text, "[before recording]"), rgb(MARK.0, 0));
        let legend = text.split("<g id=\"legend\">").nth(1).unwrap().split("</g>").next().unwrap();
        let words = ["the program", "libraries", "no line of Python", "proven"];
        assert!(words.iter().all(|word| legend.contains(word)), "{legend}");
        assert!(!legend.contains("probable"), "{legend}");
    }

    #[test]
    fn what_is_not_proven_has_a_pattern() {
        let (own, mib) = (FrameKind::Own, 1 << 20);
        let text = drawn(&[
            stack(&[("main", own), ("proven", own)], told(mib, mib, 0)),
            stack(&[("main", own), ("probable", own)], told(mib, 0, mib)),
            stack(&[("main", own), ("sampled", own)], told(mib, 0, 0)),
        ]);
        for (name, evidence) in [
            ("main", FrameEvidence::Mixed),
            ("probable", FrameEvidence::Probable),
            ("sampled", FrameEvidence::Unattributed),
        ] {
            let pattern = pattern_name("program", evidence);
            let rule = format!("rect[fill=\"{}\"] {{ fill:url(#{pattern}); }}", fill(&text, name));
            assert!(text.contains(&rule), "{name}: {rule}");
            assert!(text.contains(&format!("<pattern id=\"{pattern}\"")), "{name}");
        }
        assert!(!fill(&text, "proven").is_empty());
        let plain = format!("rect[fill=\"{}\"] {{ fill:url", fill(&text, "proven"));
        assert!(!text.contains(&plain));
    }

    #[test]
    fn looks_have_colours_of_their_own() {
        let patterns = KINDS
            .iter()
            .flat_map(|(_, (light, _))| PATTERNED.map(|evidence| rgb(*light, evidence as u8)));
        let plain = OWN.into_iter().chain([LIBRARY, MARK, WHOLE]).map(|(light, _)| rgb(light, 0));
        let search = rgb((SEARCH.r, SEARCH.g, SEARCH.b), 0);
        let all: Vec<String> = patterns.chain(plain).chain([search]).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
