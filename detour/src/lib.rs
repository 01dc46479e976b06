//! The detour region: memory of hyprobe that the guest's kernel can execute, and the copies of instructions there.
//!
//! ```text
//!  probed text                      kernel's page tables            guest-physical, above RAM
//!  ┌───────────────┐                PD of the text's gigabyte       ┌──────────────────────┐ ◀ read-only slot
//!  │ .. [ee] c3 .. │ exit           │ text  text │                  │ copy: 0f 31 e9 .. .. │
//!  └───────────────┘  │             │ 0 ──▶ ours ─────────┐         │ copy: ..             │
//!          ▲          │ RIP := copy └────────────┘        └───────▶ ├──────────────────────┤ ◀ writable slot
//!          │          ▼                                             │                      │
//!          └── jmp ── rdtsc                                         │ cells                │
//!                                                                   └──────────────────────┘
//! ```
//!
//! Beside the copies lie the detours of optimised probes (`code`). Detours count in cells writable by the guest, or write records to a ring
//! there.
//!
//! Threads: a vCPU at a plant looks a copy up under a read lock; no holder of the lock ever waits. The region and the copies change only
//! with the other vCPUs paused. Code that the guest may have executed stays unchanged until the guest ends. `docs/detours.md` has the
//! reasons.

#![forbid(unsafe_code)]

mod cells;
#[cfg(test)]
mod churn;
mod code;
mod copies;
mod detour;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod jumped;
mod kernel_space;
mod laid;
mod made;
mod pages;
mod place;
mod processor;
mod region;
mod registers;
mod ring;
mod switch;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use cells::Words;
pub use detour::{Detour, HandedOn};
pub use error::DetourError;
pub use jumped::{Jumped, Lead};
pub use kernel_space::{KernelSpace, Tables};
pub use laid::Laid;
pub use made::{Keeps, LeftAt, MadeDetour, Part, Use};
pub use pages::ChangedEntry;
pub use processor::{
    NAME_BYTES, NotKept, Processor, RecordedTask, RecordedUser, TaskFields, UserFields,
};
pub use registers::register_value;
pub use ring::{Record, Ring};
