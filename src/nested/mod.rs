//! `--accel nested`: the same run inside another machine, for hosts without hardware virtualisation.
//!
//! QEMU's TCG emulates a machine with SVM. The *outer* Linux boots there: a small stock Linux with kvm_amd and, as pid 1, this executable.
//! hyprobe is a single static file, so the outer Linux can execute hyprobe without libraries. The hyprobe inside finds the kernel, the
//! initrd and the [`RunConfig`](crate::config::RunConfig) in the initramfs and does an ordinary run on the outer Linux's `/dev/kvm`. The
//! output travels through virtio-serial ports.
//!
//! - `choice`: KVM or nested, and why.
//! - `command`: the start of QEMU.
//! - `inputs`: the files of the outer Linux.
//! - `protocol`, `lines`: the messages of the ports.
//! - `boot`, `ports`, `phase`, `launch`: outside. [`launch()`] has the signature of a run on this host's KVM, and a bit more.
//! - `error`: the errors of a run.
//! - `standstill`: a QEMU that no longer works.
//! - `threads`: the threads of a process that no longer answers, outside and inside.
//! - `init`: inside, as pid 1.
//!
//! Clients of the control socket come in through a separate port: see [`control::mux`].
//!
//! `docs/nested.md` follows a byte from the guest to the terminal, and each failure to its message.

mod boot;
mod choice;
mod command;
mod error;
mod init;
mod inputs;
mod launch;
mod lines;
mod phase;
mod ports;
mod protocol;
mod standstill;
mod tail;
mod threads;

pub(crate) use choice::{Choice, Unusable, choose};
pub use error::LaunchError;
pub use init::{is_pid_1_of_an_outer_linux, run_as_pid_1};
pub use inputs::GuestKernel;
pub(crate) use inputs::prepare;
pub use launch::{Outside, launch};
pub use protocol::InnerFailure;
