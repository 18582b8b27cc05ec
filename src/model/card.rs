//! Cards that a dry run knows: what decides how much of a job fits.
//!
//! Memory is what the driver tells a program (`cudaMemGetInfo`), which is less than the card's name
//! promises and less than nvidia-smi's total. Sources: out-of-memory messages of PyTorch in public
//! issues ("has a total capacity of 39.39 GiB"), the lowest figure seen; for the H200 a measurement
//! (driver 580.159). Compute capability and multiprocessors: NVIDIA's data sheets.

use super::quantity::parse_size;

/// A GPU, as far as memory is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its name in the driver.
    pub title: String,
    /// Bytes that the driver tells a program.
    pub memory: u64,
    /// Compute capability: PyTorch chooses kernels and work spaces by it.
    pub capability: &'static str,
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of a process's context.
    pub context: u64,
    /// Its context was measured, not estimated.
    pub is_measured: bool,
}

/// Name, title, hundredths of a GiB, compute capability, multiprocessors.
const CARDS: [(&str, &str, u64, &str, u32); 14] = [
    ("t4", "Tesla T4", 1456, "7.5", 40),
    ("v100", "Tesla V100-SXM2-16GB", 1577, "7.0", 80),
    ("v100-32g", "Tesla V100-SXM2-32GB", 3173, "7.0", 80),
    ("a10", "NVIDIA A10", 2199, "8.6", 72),
    ("a100", "NVIDIA A100-SXM4-40GB", 3939, "8.0", 108),
    ("a100-80g", "NVIDIA A100-SXM4-80GB", 7914, "8.0", 108),
    ("l4", "NVIDIA L4", 2203, "8.9", 58),
    ("l40s", "NVIDIA L40S", 4440, "8.9", 142),
    ("rtx3090", "NVIDIA GeForce RTX 3090", 2369, "8.6", 82),
    ("rtx4090", "NVIDIA GeForce RTX 4090", 2364, "8.9", 128),
    ("rtx5090", "NVIDIA GeForce RTX 5090", 3136, "12.0", 170),
    ("h100", "NVIDIA H100 80GB HBM3", 7910, "9.0", 132),
    ("h200", "NVIDIA H200", 13980, "9.0", 132),
    ("b200", "NVIDIA B200", 17835, "10.0", 148),
];

/// Measured on an H200 with driver 580: an empty context.
const MEASURED_CONTEXT: u64 = 552_402_944;
const MEASURED_PROCESSORS: u64 = 132;
const MEASURED_CARD: &str = "h200";

impl Card {
    /// The card with this name, or a card with this memory.
    pub fn parse(text: &str) -> Result<Card, String> {
        let name = text.to_lowercase().replace(['_', ' '], "-");
        let known = CARDS.iter().find(|(known, ..)| name == *known);
        if let Some(&(name, title, hundredths, capability, processors)) = known {
            return Ok(Card {
                title: title.to_owned(),
                memory: (hundredths << 30) / 100,
                capability,
                processors,
                // It holds memory for each multiprocessor.
                context: MEASURED_CONTEXT * u64::from(processors) / MEASURED_PROCESSORS,
                is_measured: name == MEASURED_CARD,
            });
        }
        match parse_size(text) {
            Ok(memory) if memory >= 1 << 30 => Ok(Card::with_memory(memory)),
            _ => {
                let hint = match text.parse::<u64>() {
                    Ok(gib) if (1..4096).contains(&gib) => format!(", as {gib}GiB"),
                    _ => ", as 24GiB".to_owned(),
                };
                Err(format!("a card's memory{hint} (at least 1GiB), or one of {}", Card::names()))
            }
        }
    }

    /// A card without a name.
    pub fn with_memory(memory: u64) -> Card {
        Card {
            title: "card".to_owned(),
            memory,
            capability: "9.0",
            processors: MEASURED_PROCESSORS as u32,
            context: MEASURED_CONTEXT,
            is_measured: false,
        }
    }

    /// The smallest known card with more memory than `bytes`.
    pub fn with_more_than(bytes: u64) -> Option<(&'static str, u64)> {
        let memory = |hundredths: u64| (hundredths << 30) / 100;
        let larger = CARDS.iter().map(|(name, _, hundredths, ..)| (*name, memory(*hundredths)));
        larger.filter(|(_, memory)| *memory > bytes).min_by_key(|(_, memory)| *memory)
    }

    /// All names, with commas.
    pub fn names() -> String {
        CARDS.map(|(name, ..)| name).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_a_name_or_a_size() {
        let h200 = Card::parse("H200").unwrap();
        assert_eq!((h200.memory >> 30, h200.is_measured), (139, true));
        assert_eq!(h200.context, MEASURED_CONTEXT);
        let t4 = Card::parse("t4").unwrap();
        assert!(t4.memory < 15 << 30 && t4.context < h200.context && !t4.is_measured);
        assert_eq!(Card::parse("24GiB").unwrap().memory, 24 << 30);
        for wrong in ["h300", "", "12", "-1G"] {
            assert!(Card::parse(wrong).unwrap_err().contains("a100-80g"), "{wrong}");
        }
    }

    #[test]
    fn the_next_larger_card_is_the_smallest_that_is_larger() {
        assert_eq!(Card::with_more_than(22 << 30).map(|(name, _)| name), Some("l4"));
        assert_eq!(Card::with_more_than(40 << 30).map(|(name, _)| name), Some("l40s"));
        assert_eq!(Card::with_more_than(1 << 40), None);
    }
}
