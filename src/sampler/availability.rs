//! What an exact recording can see.

use super::exact::ExactAvailability;
use super::readers::TargetReaders;

/// What an exact recording can see, and how.
pub fn exact_availability(readers: &TargetReaders) -> ExactAvailability {
    ExactAvailability::detect(&readers.process)
}
