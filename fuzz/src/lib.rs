//! Shared code of the fuzz targets.
//!
//! Each file in `fuzz_targets/` is a program. With `--cfg fuzzing`, which `make fuzz` and cargo-fuzz pass, libFuzzer calls
//! the target with inputs of its own. Without, the program runs the target on the files that its arguments name: seeds, or a
//! finding of libFuzzer.
//!
//! A target for guest memory begins with a valid synthetic kernel, and the input is a list of a hostile guest's changes ([`Damage`]). The
//! empty input is therefore the valid kernel, and targets for guest memory need no seeds.

#![forbid(unsafe_code)]

mod damage;
mod kernel;
mod replay;

pub use arbitrary;
pub use damage::Damage;
pub use kernel::{Symbols, kernel_file};
#[cfg(fuzzing)]
pub use libfuzzer_sys;
pub use replay::replay;

/// Makes a program of a fuzz target. The input is bytes, or any type with [`arbitrary::Arbitrary`].
#[cfg(fuzzing)]
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $type:ty| $body:expr) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            $crate::with_input(bytes, |$input: $type| $body);
        });
    };
}

/// Makes a program of a fuzz target. The input is bytes, or any type with [`arbitrary::Arbitrary`].
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $type:ty| $body:expr) => {
        fn main() -> std::process::ExitCode {
            $crate::replay(|bytes| $crate::with_input(bytes, |$input: $type| $body))
        }
    };
}

/// Runs `target` on the input made of `bytes`, if `bytes` make an input.
pub fn with_input<'b, I: arbitrary::Arbitrary<'b>>(bytes: &'b [u8], target: impl FnOnce(I)) {
    let input = I::arbitrary_take_rest(arbitrary::Unstructured::new(bytes));
    if let Ok(input) = input {
        target(input);
    }
}
