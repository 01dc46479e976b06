//! Expressions of C on a kernel's variables: `init_task.mm->pgd`, `*(struct file *)0xffff…`, `per_cpu(runqueues, 1).nr_running`.
//!
//! `token` cuts the text into tokens, `parse` makes an [`Expression`] (a tree, `tree`) of them, with the place of each part in the text, and
//! [`evaluate`](Expression::evaluate) follows the tree through the kernel's types and memory to an [`Object`]. An expression has operators
//! that name objects: members, elements, `*`, `&` and casts. It changes nothing and calls nothing.

mod cast;
mod error;
mod evaluate;
mod parse;
mod print;
mod token;
mod tree;
mod type_name;
mod variable;

#[cfg(test)]
mod tests;

pub use error::{EvaluateError, ParseError, Span};
pub use evaluate::{Object, Place};
pub use print::{PrintError, Printed};
pub use tree::{Expression, TypeName};
pub use variable::declared_type;
