//! The phase of a peak, in words.

use super::bytes;
use crate::analysis::{PeakPhase, Profile, RunPhase, peak_phase};
use crate::model::CudaIndex;

/// `None` unless proven.
pub(crate) fn phase_at_peak(profile: &Profile, device: CudaIndex) -> Option<String> {
    Some(sentence(peak_phase(profile, device)?))
}

/// For the line below a picture.
pub(crate) fn phase_in_short(profile: &Profile, device: CudaIndex) -> Option<String> {
    Some(format!("the peak lies in {}", place(peak_phase(profile, device)?.phase)))
}

fn place(phase: RunPhase) -> &'static str {
    match phase {
        RunPhase::Loading => "loading",
        RunPhase::Forward => "the forward pass",
        RunPhase::Backward => "the backward pass",
        RunPhase::Optimizer => "the optimizer's step",
        RunPhase::Evaluation => "evaluation",
    }
}

fn sentence(PeakPhase { phase, allocated_in_it, temporary, foreach }: PeakPhase) -> String {
    let place = place(phase);
    match foreach {
        0 => {
            let temporary =
                temporary.filter(|freed| *freed > 0).map_or_else(String::new, |freed| {
                    format!(
                        ", at least {} of them are temporary: freed before the end",
                        bytes(freed)
                    )
                });
            format!(
                "The peak lies in {place}: {} were allocated there{temporary}.",
                bytes(allocated_in_it)
            )
        }
        _ => format!(
            "The peak lies in {place}: {} are temporary there; fused=True or foreach=False avoids them.",
            bytes(foreach)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporaries_of_an_optimizer_come_with_the_change() {
        let (phase, allocated_in_it) = (RunPhase::Backward, 3 << 20);
        let peak = PeakPhase { phase, allocated_in_it, temporary: None, foreach: 0 };
        assert_eq!(
            sentence(peak),
            "The peak lies in the backward pass: 3.00 MiB were allocated there."
        );
        assert_eq!(
            sentence(PeakPhase { temporary: Some(2 << 20), ..peak }),
            "The peak lies in the backward pass: 3.00 MiB were allocated there, at least 2.00 MiB of them are temporary: freed before the end."
        );
        let peak = PeakPhase { phase: RunPhase::Optimizer, foreach: 2 << 20, ..peak };
        assert_eq!(
            sentence(peak),
            "The peak lies in the optimizer's step: 2.00 MiB are temporary there; fused=True or foreach=False avoids them."
        );
    }
}
