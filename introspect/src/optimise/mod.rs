//! The addresses where a jump can serve as a probe.
//!
//! A probe without VM exits is a jump of five bytes to a detour. The detour does the probe's work,
//! and then the work of the instructions under the jump. The jump may cover more than one
//! instruction, so no branch may go to the middle of the instructions, the kernel may not look
//! their addresses up, and a detour must be able to hold each of them. [`Survey`] examines a whole
//! kernel once, and gives the [verdict](Survey::verdict) on any address: [`Optimisable`] or
//! [`WhyNot`]. `docs/optimisable.md` describes the purpose of each check.

mod arrivals;
mod encoding;
mod exceptions;
mod movable;
mod retpoline;
mod survey;
mod sweep;
mod tables;
#[cfg(test)]
mod tests;
mod unfit;
mod verdict;

pub use encoding::DamagedSurvey;
pub use movable::Fixed;
pub use survey::Survey;
pub use unfit::Unfit;
pub use verdict::{JUMP_BYTES, MAX_REGION_BYTES, Optimisable, WhyNot};
