//! The locks of the gate: `tests/gate.rs` has others under the same names.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
