//! Values of C types, read from a kernel's memory.
//!
//! [`Reader`] follows a type through memory and makes a [`Value`]: a tree of numbers, names and members. `text` writes a value as C
//! initializers, and [`Value::to_json`] as JSON. The kernel's memory and types may say anything: depth, number of values, elements of
//! arrays and length of strings are limited, and the tree says where something was left out.

mod json;
mod object;
mod read;
mod text;
mod tree;

#[cfg(test)]
mod tests;

pub use read::{Limits, Reader};
pub use tree::{Field, Pointee, Value};
