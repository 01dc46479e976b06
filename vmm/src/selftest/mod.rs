//! The self-test: a tiny guest, run at start, that measures the behaviour of this host's KVM.
//!
//! Each question is a few bytes of code in a machine of two megabytes without devices: the test runs the code and checks the
//! vCPU's exit. The answers are a [`HostFacts`]; no other code of hyprobe distinguishes KVMs. The whole test takes a few
//! milliseconds on hardware, and some tens where ring 0 is interpreted.

mod error;
mod guest;
mod questions;

use std::time::Instant;

pub use error::SelfTestError;
use guest::TinyGuest;

use crate::kvm::{Host, HostFacts, Int3Delivery, InterruptedInt3};

/// Runs the self-test on the calling thread.
///
/// # Errors
///
/// If KVM refuses a basic request. A bad answer to a question is a fact, not an error.
pub fn self_test(host: &Host) -> Result<HostFacts, SelfTestError> {
    let started = Instant::now();
    let mut guest = TinyGuest::new(host)?;
    let int3 = questions::int3(&mut guest, guest::Ring::Kernel)?;
    let exit_ns = questions::exit_ns(&mut guest)?;
    let interrupted_int3 = match int3 {
        Int3Delivery::DebugExit | Int3Delivery::ToGuest => {
            questions::interrupted_int3(&mut guest, exit_ns)?
        }
        // The guest never takes a #BP by itself.
        Int3Delivery::EmulationFailure | Int3Delivery::Broken => InterruptedInt3::NotSeen,
    };
    let facts = HostFacts {
        int3,
        int3_user: questions::int3(&mut guest, guest::Ring::User)?,
        breakpoint_injection: questions::breakpoint_injection(&mut guest)?,
        interrupted_int3,
        port: questions::port(&mut guest)?,
        int1: questions::int1(&mut guest)?,
        holds_interrupts: questions::holds_interrupts(&mut guest, host)?,
        debug_execute: questions::debug_execute(&mut guest)?,
        breakpoint_before_fetch: questions::breakpoint_before_fetch(&mut guest)?,
        debug_data: questions::debug_data(&mut guest)?,
        read_only_slots: questions::read_only_slots(&mut guest)?,
        table_writes_seen: questions::table_writes_seen(&mut guest)?,
        msr_exits: questions::msr_exits(&mut guest, host)?,
        speed: questions::speed(&mut guest)?,
        exit_ns,
    };
    tracing::debug!(?facts, took = ?started.elapsed(), "host self-test");
    Ok(facts)
}
