//! The mapped and sleeping parts of vLLM's memory, by tag.
//!
//! A tag with a host copy is unmapped. Other unmapped memory counts as reserved in PyTorch, not in
//! the driver. A tag sleeps as a whole: known is what all combinations that fit the driver share.

use crate::model::TaggedMemory;

/// More than context, kernels and NCCL's buffers take.
const MAX_OUTSIDE: i128 = 8 << 30;
/// Tags without a copy that are tried in combination.
const MAX_CHOICES: usize = 12;

/// Whether a tag's memory is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SleepState {
    /// Bytes mapped and asleep.
    Known {
        /// Mapped bytes.
        mapped: u64,
        /// Unmapped bytes.
        asleep: u64,
    },
    /// Unknown, and why.
    Unknown(&'static str),
}

/// One tag's memory on a device.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagShare {
    pub tag: String,
    pub bytes: u64,
    pub state: SleepState,
}

/// `reserved` is PyTorch's figure, `process` the driver's.
pub(super) fn tag_shares(
    tags: &[&TaggedMemory],
    reserved: Option<u64>,
    process: Option<u64>,
) -> Vec<TagShare> {
    let without_copy: Vec<u64> =
        tags.iter().map(|tag| tag.bytes.saturating_sub(tag.on_host)).collect();
    let open: Vec<usize> = (0..tags.len()).filter(|&tag| without_copy[tag] > 0).collect();
    let on_host: u64 = tags.iter().map(|tag| tag.on_host.min(tag.bytes)).sum();
    // Bytes outside PyTorch if only memory with a copy sleeps.
    let outside = reserved.zip(process).map(|(reserved, process)| {
        i128::from(process) - i128::from(reserved) + i128::from(on_host)
    });
    let choices = match (outside, open.len()) {
        (Some(outside), ..=MAX_CHOICES) => possible(&open, &without_copy, outside),
        _ => Vec::new(),
    };
    let state = |tag: usize| {
        let (known, open_bytes) = (tags[tag].on_host.min(tags[tag].bytes), without_copy[tag]);
        let Some(bit) = open.iter().position(|&open| open == tag) else {
            return SleepState::Known { mapped: 0, asleep: known };
        };
        let asleep = choices.iter().filter(|choice| *choice >> bit & 1 == 1).count();
        match (asleep, choices.len()) {
            _ if outside.is_none() => {
                SleepState::Unknown("the driver does not say what the process has on the GPU")
            }
            (_, 0) => SleepState::Unknown("the driver's figure fits no choice of tags"),
            (0, _) => SleepState::Known { mapped: open_bytes, asleep: known },
            (asleep, all) if asleep == all => {
                SleepState::Known { mapped: 0, asleep: known + open_bytes }
            }
            _ => {
                SleepState::Unknown("it has no copy on the host, and the driver's figure fits both")
            }
        }
    };
    let share = |tag: usize| TagShare {
        tag: tags[tag].tag.clone(),
        bytes: tags[tag].bytes,
        state: state(tag),
    };
    (0..tags.len()).map(share).collect()
}

/// Combinations of sleeping tags (as bits) that leave 0 to `MAX_OUTSIDE` bytes outside PyTorch.
fn possible(open: &[usize], bytes: &[u64], outside: i128) -> Vec<u32> {
    let of = |choice: &u32| {
        let asleep = open.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1);
        asleep.map(|(_, &tag)| i128::from(bytes[tag])).sum::<i128>()
    };
    let fits = |choice: &u32| (0..=MAX_OUTSIDE).contains(&(outside + of(choice)));
    (0..1u32 << open.len()).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CudaIndex;

    const GIB: u64 = 1 << 30;

    fn tag(tag: &str, bytes: u64, on_host: u64) -> TaggedMemory {
        TaggedMemory { device: CudaIndex(0), tag: tag.into(), bytes, on_host }
    }

    fn states(tags: &[TaggedMemory], reserved: u64, process: Option<u64>) -> Vec<SleepState> {
        let tags: Vec<&TaggedMemory> = tags.iter().collect();
        let shares = tag_shares(&tags, Some(reserved), process);
        shares.into_iter().map(|share| share.state).collect()
    }

    fn mapped(bytes: u64) -> SleepState {
        SleepState::Known { mapped: bytes, asleep: 0 }
    }

    fn asleep(bytes: u64) -> SleepState {
        SleepState::Known { mapped: 0, asleep: bytes }
    }

    #[test]
    fn sleeping_tags_follow_from_copies_and_the_drivers_figure() {
        let awake = [tag("weights", 16 * GIB, 0), tag("kv_cache", 40 * GIB, 0)];
        assert_eq!(states(&awake, 57 * GIB, Some(58 * GIB)), [mapped(16 * GIB), mapped(40 * GIB)]);
        let first = [tag("weights", 16 * GIB, 16 * GIB), tag("kv_cache", 40 * GIB, 0)];
        assert_eq!(states(&first, 57 * GIB, Some(2 * GIB)), [asleep(16 * GIB), asleep(40 * GIB)]);
        // Woken by `wake_up(["weights"])`.
        assert_eq!(states(&awake, 57 * GIB, Some(18 * GIB)), [mapped(16 * GIB), asleep(40 * GIB)]);
        // `sleep(level=2)` keeps no copies.
        assert_eq!(states(&awake, 57 * GIB, Some(2 * GIB)), [asleep(16 * GIB), asleep(40 * GIB)]);
    }

    #[test]
    fn small_tag_without_a_copy_is_unknown() {
        let small = [tag("weights", 16 * GIB, 16 * GIB), tag("kv_cache", GIB, 0)];
        let states = states(&small, 18 * GIB, Some(3 * GIB));
        assert_eq!(states[0], asleep(16 * GIB));
        assert!(matches!(states[1], SleepState::Unknown(_)), "{states:?}");
    }

    #[test]
    fn without_the_drivers_figure_only_copies_are_known() {
        let tags = [tag("weights", GIB, GIB), tag("kv_cache", GIB, 0)];
        let states = states(&tags, 3 * GIB, None);
        assert_eq!(states[0], asleep(GIB));
        assert!(matches!(states[1], SleepState::Unknown(_)), "{states:?}");
        let wrong = super::tag_shares(&[&tag("kv_cache", GIB, 0)], Some(90 * GIB), Some(GIB));
        assert!(matches!(wrong[0].state, SleepState::Unknown(_)), "{wrong:?}");
    }
}
