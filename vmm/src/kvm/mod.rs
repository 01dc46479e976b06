//! The host's KVM: opening `/dev/kvm`, capabilities, and the facts of the self-test.

mod facts;
mod host;
mod tsc;
mod vm;

pub use facts::{
    BreakpointInjection, HostFacts, HostObstacle, Int1Delivery, Int3Delivery, InterruptedInt3,
    PortDelivery, Speed,
};
pub(crate) use host::CAP_EXIT_ON_EMULATION_FAILURE;
pub use host::{Capabilities, Host, OpenError};
pub use tsc::tsc_khz;
pub(crate) use vm::{disable_quirks, report_msr_writes};
