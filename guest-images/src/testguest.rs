//! A bare-metal kernel that boots in milliseconds on any KVM and checks itself.
//!
//! It is an ELF file for the 64-bit Linux boot protocol. The command line chooses what it does
//! (`run=calls=100,checksum`); it prints `testguest: NAME ok …` or `testguest: NAME FAIL …` on
//! COM1 and ends through the debug-exit port 0xf4, with 0 if all went well.

use std::path::{Path, PathBuf};

use crate::toolchain::BuildError;

/// Compiles the test guest into `out_dir/testguest`, an ELF file with symbols.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_testguest(out_dir: &Path) -> Result<PathBuf, BuildError> {
    crate::toolchain::compile(out_dir, "testguest", &[], &[])
}
