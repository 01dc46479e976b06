//! Every function of a stock kernel is probed, and the guest must not notice.
//!
//! ```text
//!  rig sweep (outside)                      sweep (beside KVM)
//!  ─ a launch for each mode ──────────────▶ ─ boots the guest without probes: the baseline
//!  ─ keeps each line                        ─ boots batch after batch, judges each boot
//!  ─ a dead Linux: writes that down,        ─ searches a failing batch for the functions
//!    and launches again with what is known  ─ prints each boot, each finding, the sum
//!  ─ writes docs/sweep.md
//! ```
//!
//! [`Mode`] says how the functions are probed, `function` which there are, `boot` boots, `judge` compares with the baseline,
//! `search` finds the harmful functions of a batch, `batches` splits what takes too long. `known` makes a second launch
//! go on where the first one ended; [`campaign`] is the part outside.

mod batches;
mod boot;
pub mod campaign;
mod console;
mod deadline;
mod frequent;
mod function;
mod judge;
mod known;
mod lifecycle;
mod mode;
mod options;
mod outcome;
pub mod page;
mod program;
mod registers;
mod run;
mod search;
mod step;

pub use mode::Mode;
pub use options::Options;
pub use run::{Sweep, SweepError};
pub use step::Step;
