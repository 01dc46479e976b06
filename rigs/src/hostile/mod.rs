//! Hostile guests against `hyprobe run`, the command itself: its sandbox is on, its control socket is used while the guest
//! misbehaves, and each end is judged.
//!
//! ```text
//!  campaign ── boot ──┬─ hyprobe run ── hostile guest (guest_images::hostile)
//!             seed N  ├─ operator: probes come and go through the control socket
//!                     ├─ watch: memory of the processes, a deadline
//!                     └─ verdict: exit code, messages, files, sizes
//! ```
//!
//! A boot is repeated by its backend and seed. The guest's acts, the operator's requests and the end that the rig chooses
//! depend on the seed only; what the two processors and the operator do to each other depends on time.

mod boot;
mod campaign;
mod files;
mod guest;
mod operator;
mod plan;
mod processes;
mod verdict;

pub use boot::{Boot, Booted};
pub use campaign::{Campaign, HostileError, Totals};
pub use verdict::End;
