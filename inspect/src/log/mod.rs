//! The kernel's log, from the ring that `printk` writes.
//!
//! The ring has three arrays: descriptors with the state of each record, infos with its numbers, and the text. A writer reserves a
//! descriptor, fills info and text, and then sets the descriptor's state; before the kernel uses a descriptor again, it changes the state.
//! So a reader needs neither a lock nor a pause: [`Log`] reads the descriptors, the infos and the text, and then the descriptors
//! again, and takes the records with the same state in both reads (`ring`). The kernel's own readers do the same. [`LogText`] is the text as
//! `dmesg` prints it.

mod error;
mod layout;
mod ring;
#[cfg(test)]
mod tests;
mod text;

pub use error::LogError;
pub use ring::{Log, LogRecord};
pub use text::LogText;
