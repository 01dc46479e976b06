//! The test guest on this host's KVM, probed, and every count compared with the guest's own.
//!
//! The guest checks itself: each scenario looks at registers, flags, memory and faults, so what a probe disturbs fails
//! in the guest. Built with the feature `test-kvm`, which promises that there is a /dev/kvm.

#![cfg(feature = "test-kvm")]

mod boundaries;
mod control;
mod ends;
mod guest;
mod live;
mod observer;
mod remote;
mod returns;
mod scenarios;
mod text;
