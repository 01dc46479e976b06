//! The same tests of the probe engine on every kind of KVM.
//!
//! ```text
//!  rig intel|amd|nested|local|busy|ground contract, busy, ground
//!  ─ builds an initramfs ──────────────▶ ─ as pid 1: makes a Linux with KVM around itself
//!  ─ starts Bochs or QEMU                ─ runs a guest under the engine, case by case
//!  ◀───────────── lines of JSON on COM1 ─┘
//!  ─ prints a table, keeps the lines
//! ```
//!
//! [`contract`] runs beside KVM with the test guest, [`busy`], [`ground`] and [`sweep`] with a stock kernel. [`launch`] starts them
//! there; [`mod@line`] is the common format of their lines. [`hostile`] starts the command itself.

pub mod busy;
pub mod contract;
pub mod generated;
pub mod ground;
pub mod hostile;
pub mod init;
pub mod launch;
pub mod line;
pub mod overhead;
mod runner;
mod selection;
pub mod sweep;
pub mod table;
pub mod way;
