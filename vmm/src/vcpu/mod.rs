//! vCPUs: their threads, how they leave the guest, and how they are paused.

mod alone;
mod blocking;
mod breakpoint;
mod cpuid;
mod debug_setup;
mod debugging;
mod error;
mod exception;
mod exit;
pub(crate) mod gate;
#[cfg(test)]
mod gate_tests;
pub(crate) mod kick;
mod kvm_run;
mod msrs;
mod port_write;
mod registers;
pub(crate) mod rips;
pub(crate) mod run;
mod stall;
pub(crate) mod state;
pub(crate) mod stopped;
mod sync;
pub(crate) mod watchdog;

pub use alone::{Alone, AloneBreakpoints, AloneEnd};
pub use blocking::{Blocking, Shadow};
pub(crate) use cpuid::for_vcpu as cpuid_for_vcpu;
pub use debug_setup::{BreakpointBytes, HardwareBreakpoint, HardwareBreakpoints};
pub use error::{RunError, VcpuError};
pub use exception::Exception;
pub use registers::VcpuRegisters;
pub use state::VcpuState;
pub use stopped::StoppedVcpu;
