//! Where a jump can stand for a probe.
//!
//! A probe that costs no exit is a jump of five bytes to a detour, which does what is asked and then what the
//! instructions under the jump would have done. That may be more than one, so nothing may go to the middle of
//! them, nobody may look their addresses up, and a detour must be able to hold each of them. [`Survey`] looks
//! through a whole kernel once, and gives its [verdict](Survey::verdict) on any place: [`Optimisable`] or [`WhyNot`].
//! `docs/optimisable.md` says what each check is for.

mod arrivals;
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

pub use movable::Fixed;
pub use survey::Survey;
pub use unfit::Unfit;
pub use verdict::{JUMP_BYTES, MAX_REGION_BYTES, Optimisable, WhyNot};
