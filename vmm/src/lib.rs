//! The machine under the probes: a small KVM VMM that boots Linux and reports VM exits at plants.
//!
//! [`Host`] is the opened `/dev/kvm`, [`self_test`] measures the behaviour of its KVM, [`Machine`] boots a kernel.
//! VM exits that no device handles go to a [`TrapHandler`], the crate's only link to probes.
//!
//! Threads: one per vCPU, one for device input, and the caller of [`Machine::wait`]. Any thread without a vCPU may pause
//! all vCPUs through a [`Control`]. A trap handler pauses the other vCPUs by returning [`TrapOutcome::Exclusive`].
//! `vcpu/gate.rs` shows which thread waits for which.

pub mod boot;
pub mod devices;
mod kvm;
mod machine;
mod memory;
mod panicked;
mod selftest;
mod trap;
mod trap_handler;
mod vcpu;

pub use kvm::{
    BreakpointInjection, Capabilities, Host, HostFacts, HostObstacle, Int1Delivery, Int3Delivery,
    InterruptedInt3, OpenError, PortDelivery, Speed, tsc_khz,
};
pub use kvm_bindings::{kvm_debugregs, kvm_regs, kvm_segment, kvm_sregs};
pub use machine::{
    Console, Control, CreateError, End, Int3Exits, MSR_LSTAR, Machine, MachineConfig, PausedGuard,
};
pub use memory::{
    DetourMapError, DetourMemory, DetourSize, PageRange, ProtectError, Protection, RamError,
    SlotError,
};
pub use panicked::Panicked;
pub use selftest::{SelfTestError, self_test};
pub use trap::{Trap, TrapError, TrapOutcome};
pub use trap_handler::{NoTraps, TrapHandler};
pub use vcpu::{
    Alone, AloneBreakpoints, AloneEnd, Blocking, BreakpointBytes, Exception, HardwareBreakpoint,
    HardwareBreakpoints, RunError, Shadow, StoppedVcpu, VcpuError, VcpuRegisters, VcpuState,
};
