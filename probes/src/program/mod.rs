//! Programs: what is done at a hit beyond telling or counting it.
//!
//! ```text
//!  hit ──▶ Filter: does every Condition hold? ── no ──▶ not a hit
//!              │ yes
//!              ▼
//!          Aggregate: the value of an Operand goes into an array of words
//! ```
//!
//! ```text
//! arg0 == 5 && (arg2 & 0xff) != 1 && cpu == 1 && (int64)rax < 0
//! sum(arg2)   min(arg2)   max(arg2)   hist(arg2)   lhist(arg2, 0, 4096, 256)
//! ```
//!
//! A program has no loop, reads no memory but what an [`Operand`] names, and has a bound on its size: it can be executed
//! in the VMM at an exit, or be compiled into a detour in the guest. Both write results into words of one layout, which
//! [`Aggregate`] describes, and [`Aggregate::merge`] puts together.

mod aggregate;
mod error;
mod filter;
mod operand;
mod parse;
mod result;
#[cfg(test)]
mod tests;
mod token;

pub use aggregate::{Aggregate, Linear, LinearError, NotAtReturn};
pub use error::{ProgramError, ProgramProblem};
pub use filter::{Comparison, Condition, Filter, FilterError};
pub use operand::{Argument, Operand, Register, Values};
pub use result::{AggregateResult, HistBucket, LhistBucket};
