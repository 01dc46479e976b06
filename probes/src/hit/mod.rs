//! Hits: looks up the plant at a vCPU's RIP.

mod table;

pub(crate) use table::{DebugRegisters, DebugUse, Plant, Table, own_instruction};
