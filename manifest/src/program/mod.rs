//! Programs: filters and aggregates, evaluated at hits.
//!
//! ```text
//!  hit ──▶ Filter: does every Condition hold? ── no ──▶ not a hit
//!              │ yes
//!              ▼
//!          Aggregate: the value of an Operand goes into an array of words
//! ```
//!
//! ```text
//! arg0 == 5 && (arg2 & 0xff) != 1 && cpu == 1 && (int64)rax < 0 && comm != "bash"
//! sum(arg2)   min(arg2)   max(arg2)   hist(arg2)   lhist(arg2, 0, 4096, 256)
//! ```
//!
//! A program has no loop, reads no memory except the per-processor variables of an [`Operand`], and has a bounded size. A program can be
//! executed in the VMM at an exit, or be compiled into a detour in the guest. Both write results into words of one layout, described by
//! [`Aggregate`]; [`Aggregate::merge`] adds the results up.

mod aggregate;
mod error;
mod filter;
mod name;
mod operand;
mod parse;
mod result;
#[cfg(test)]
mod tests;
mod token;

pub use aggregate::{Aggregate, Linear, LinearError, NotAtReturn};
pub use error::{ProgramError, ProgramProblem};
pub use filter::{Comparison, Condition, Filter, FilterError, NameCondition, ValueCondition};
pub use name::{NAME_BYTES, NameWord, TaskName};
pub use operand::{Argument, Operand, Register, TaskNumber, Values};
pub use result::{AggregateResult, HistBucket, LhistBucket};
