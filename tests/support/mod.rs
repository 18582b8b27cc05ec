//! Test support: targets with a handshake, the built program, interpreters, the simulated device.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod browser;
pub mod core_file;
pub mod damaged;
pub mod exact;
pub mod fork_server;
pub mod memspy;
pub mod one_peak;
pub mod oom;
pub mod pythons;
pub mod scenes;
pub mod sim;
pub mod stack_oracle;
pub mod suggestions;
pub mod target;
pub mod tensors;
pub mod terminal;
pub mod versions;

/// Whether this is `scripts/test.sh --all`, which sets up everything: what is missing is a failure.
pub fn everything_is_there() -> bool {
    std::env::var_os("MEMSPY_ALL").is_some()
}
