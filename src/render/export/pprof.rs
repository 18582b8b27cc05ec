//! pprof's profile: gzipped protocol buffers for `go tool pprof`, Pyroscope and Parca.
//!
//! Field numbers: <https://github.com/google/pprof/blob/main/proto/profile.proto>.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{ExportedDevice, ExportedFrame};
use crate::render::shared::OutputError;

#[derive(Debug, Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// 0 is left out.
    fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut list = ProtobufMessage::default();
        values.into_iter().for_each(|value| list.varint(value));
        self.bytes(field, &list.0);
    }

    fn message(&mut self, field: u32, message: &ProtobufMessage) {
        self.bytes(field, &message.0);
    }
}

/// Each entry is written once.
#[derive(Debug, Default)]
struct ProfileTables {
    strings: Vec<String>,
    string_numbers: BTreeMap<String, u64>,
    /// By name, file and first line.
    functions: BTreeMap<(String, String, u32), u64>,
    locations: BTreeMap<ExportedFrame, u64>,
    body: ProtobufMessage,
}

impl ProfileTables {
    fn new() -> ProfileTables {
        let mut tables = ProfileTables::default();
        // pprof wants the first one empty.
        tables.string("");
        tables
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.string_numbers.get(text) {
            return number;
        }
        let number = self.strings.len() as u64;
        self.strings.push(text.to_owned());
        self.string_numbers.insert(text.to_owned(), number);
        number
    }

    fn function(&mut self, frame: &ExportedFrame) -> u64 {
        let key = (frame.name.clone(), frame.file.clone(), frame.first_line);
        if let Some(&id) = self.functions.get(&key) {
            return id;
        }
        let id = self.functions.len() as u64 + 1;
        let (name, file) = (self.string(&frame.name), self.string(&frame.file));
        let mut function = ProtobufMessage::default();
        function.number(1, id);
        function.number(2, name);
        function.number(3, name);
        function.number(4, file);
        function.number(5, u64::from(frame.first_line));
        self.body.message(5, &function);
        self.functions.insert(key, id);
        id
    }

    fn location(&mut self, frame: &ExportedFrame) -> u64 {
        if let Some(&id) = self.locations.get(frame) {
            return id;
        }
        let id = self.locations.len() as u64 + 1;
        let mut line = ProtobufMessage::default();
        line.number(1, self.function(frame));
        line.number(2, u64::from(frame.line));
        let mut location = ProtobufMessage::default();
        location.number(1, id);
        location.message(4, &line);
        self.body.message(4, &location);
        self.locations.insert(frame.clone(), id);
        id
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ProtobufMessage {
        let mut message = ProtobufMessage::default();
        message.number(1, self.string(kind));
        message.number(2, self.string(unit));
        message
    }
}

/// Bytes live, bytes allocated, allocations.
type SampleValues = [u64; 3];

/// Writes a profile of each device. Values besides live bytes appear only if all recordings have
/// them.
pub fn pprof(out: &mut dyn Write, devices: &[ExportedDevice<'_>]) -> Result<(), OutputError> {
    let has_allocated = devices.iter().all(|device| device.allocated.is_some());
    let has_counts = has_allocated
        && devices
            .iter()
            .flat_map(|device| device.allocated.iter().flatten())
            .all(|stack| stack.count.is_some());
    let mut tables = ProfileTables::new();
    let mut profile = ProtobufMessage::default();
    let mut kinds: Vec<(&str, &str, usize)> = Vec::new();
    if has_counts {
        kinds.push(("alloc_objects", "count", 2));
    }
    if has_allocated {
        kinds.push(("alloc_space", "bytes", 1));
    }
    kinds.push(("inuse_space", "bytes", 0));
    for (kind, unit, _) in &kinds {
        let kind = tables.value_type(kind, unit);
        profile.message(1, &kind);
    }
    for device in devices {
        let labels = labels(device, &mut tables);
        for (locations, values) in samples(device, &mut tables) {
            let mut sample = ProtobufMessage::default();
            // Leaf first.
            sample.packed(1, locations.into_iter().rev());
            sample.packed(2, kinds.iter().map(|(_, _, which)| values[*which]));
            labels.iter().for_each(|label| sample.message(3, label));
            profile.message(2, &sample);
        }
    }
    let default = tables.string("inuse_space");
    let comment = tables.string(concat!("memspy ", env!("CARGO_PKG_VERSION")));
    profile.0.append(&mut tables.body.0);
    for text in &tables.strings {
        profile.bytes(6, text.as_bytes());
    }
    if let Some(start) = devices.first().and_then(|device| device.profile.start()) {
        profile.number(9, start.unix_nanos);
    }
    let duration = devices.iter().map(|device| device.profile.duration().0).max();
    profile.number(10, duration.unwrap_or(0));
    profile.packed(13, [comment]);
    profile.number(14, default);
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&profile.0)?;
    gzip.finish()?;
    Ok(())
}

/// Locations are outermost first.
fn samples(
    device: &ExportedDevice<'_>,
    tables: &mut ProfileTables,
) -> BTreeMap<Vec<u64>, SampleValues> {
    let mut samples: BTreeMap<Vec<u64>, SampleValues> = BTreeMap::new();
    let live = device.folded.stacks.iter().map(|stack| (&stack.path, [stack.bytes, 0, 0]));
    let allocated = device.allocated.iter().flatten();
    let allocated =
        allocated.map(|stack| (&stack.path, [0, stack.bytes, stack.count.unwrap_or(0)]));
    for (path, values) in live.chain(allocated).filter(|(_, values)| *values != [0; 3]) {
        let frames = device.frames(path);
        let path = frames.iter().map(|frame| tables.location(frame)).collect();
        let sums = samples.entry(path).or_default();
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
    samples
}

fn labels(device: &ExportedDevice<'_>, tables: &mut ProfileTables) -> Vec<ProtobufMessage> {
    let mut label = |key: &str, value: &str| {
        // Not `number`, which leaves 0 out.
        let mut message = ProtobufMessage::default();
        message.number(1, tables.string(key));
        message.number(2, tables.string(value));
        message
    };
    let mut labels = vec![label("device", &device.device().0.to_string())];
    labels.extend(device.rank().map(|rank| label("rank", &rank.to_string())));
    labels.push(label("pid", &device.pid().to_string()));
    labels
}
