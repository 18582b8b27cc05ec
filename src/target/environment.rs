//! The target's present environment, with changes by `os.environ`.

use super::elf::LoadedObject;
use super::mappings::Mappings;
use super::memory::{Addr, Memory};

/// Against damaged arrays.
const MAX_VARIABLES: usize = 4096;
const MAX_VARIABLE_LEN: usize = 4096;

/// The value of `name`.
pub fn variable(variables: &[String], name: &str) -> Option<String> {
    variables.iter().find_map(|v| v.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// `NAME=value` of each, from the C library's `environ` (glibc, musl).
pub fn read(memory: &dyn Memory, mappings: &Mappings) -> Option<Vec<String>> {
    let c_library = |name: &str| {
        name.starts_with("libc.so") || name.starts_with("libc-2.") || name.starts_with("ld-musl")
    };
    let object = LoadedObject::find(memory, mappings, c_library)?.ok()?;
    let symbol = object.exported(memory, "environ").ok()??;
    let array = memory.pointer(symbol).ok()?;
    let mut variables = Vec::new();
    for i in 0..MAX_VARIABLES {
        match memory.pointer(array + 8 * i as u64).ok()? {
            Addr(0) => break,
            text => variables.push(memory.c_string(text, MAX_VARIABLE_LEN).ok()?),
        }
    }
    Some(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Process;

    #[test]
    fn the_current_environment_is_read() {
        let own = Process::open(std::process::id()).unwrap();
        // Other tests' threads map and unmap memory meanwhile.
        let attempt = |_| read(&own.memory(), &own.mappings().unwrap());
        let read = (0..100).find_map(attempt).unwrap();
        assert_eq!(variable(&read, "PATH"), std::env::var("PATH").ok());
        assert_eq!(variable(&read, "NO_SUCH_VARIABLE_HERE"), None);
    }
}
