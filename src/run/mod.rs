//! A run, from its arguments to its summary: the parts that `hyprobe run`, `test` and `check` share.
//!
//! - `merge`: the command line and the manifest become one configuration.
//! - `guest`, `images`: the files of the guest, and stock kernels.
//! - `identity`: the user of the run.
//! - `place`, `session`: this host's KVM or a nested run, and the run on KVM.
//! - `ends`, `crash_dump`: where the run's output goes.
//! - `log_end`: the end of the kernel's log.
//! - `judged`: the expectations, on the way of the events to the user.

pub(crate) mod crash_dump;
pub(crate) mod ends;
pub(crate) mod guest;
pub(crate) mod identity;
pub(crate) mod images;
pub(crate) mod judged;
pub(crate) mod log_end;
pub(crate) mod merge;
pub(crate) mod place;
pub(crate) mod session;
