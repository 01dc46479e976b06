//! What can be known of a guest by looking at its memory.

#![forbid(unsafe_code)]

mod addr;

pub use addr::{Gpa, Gva};
