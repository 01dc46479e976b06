//! `--accel nested`: the same run, one machine further in, for hosts without hardware virtualisation.
//!
//! QEMU's TCG emulates a machine with SVM in it. A small stock Linux boots there, the *outer* Linux, with kvm_amd and,
//! as its pid 1, this very executable: hyprobe is one static file, so that it can. Inside it finds the kernel, the
//! initrd and the [`RunConfig`](crate::config::RunConfig) in its initramfs and does an ordinary run on the outer
//! Linux's `/dev/kvm`. What it has to tell travels through virtio-serial ports.
//!
//! - [`choose`]: KVM or nested, and why.
//! - `qemu`, `command`: which QEMU, and how it is started.
//! - `outer`, `executable`: what the outer Linux consists of.
//! - `protocol`, `lines`: what passes through the ports.
//! - `boot`, `ports`, `phase`, `launch`: outside. [`launch()`] has the signature of a run on this host's KVM, and a bit more.
//! - `init`: inside, as pid 1.
//!
//! Clients of the control socket come in through a port of their own: see [`control::mux`].
//!
//! `docs/nested.md` follows a byte from the guest to the terminal, and every failure to its message.

mod boot;
mod choice;
mod command;
mod executable;
mod init;
mod launch;
mod lines;
mod outer;
mod phase;
mod ports;
mod protocol;
mod qemu;
mod tail;

pub(crate) use choice::{Choice, Unusable, choose};
pub(crate) use init::{is_pid_1_of_an_outer_linux, run_as_pid_1};
pub(crate) use launch::{LaunchError, Outside, launch};
pub(crate) use outer::{IMAGE as OUTER_IMAGE, prepare};
pub(crate) use protocol::InnerFailure;
pub(crate) use qemu::{Qemu, QemuError};
