//! An expression as a tree.

use super::error::Span;

/// A parsed expression, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    pub(super) text: String,
    pub(super) root: Node,
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: Span,
}

/// The kinds of parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A variable or a function.
    Name(String),
    /// A number.
    Number(u64),
    /// `per_cpu(name, cpu)`.
    PerCpu(String, u64),
    /// `of.name`, or `of->name` through a pointer.
    Member {
        of: Box<Node>,
        name: String,
        is_arrow: bool,
    },
    /// `of[number]`.
    Element { of: Box<Node>, number: u64 },
    /// `*of`.
    Target(Box<Node>),
    /// `&of`.
    Address(Box<Node>),
    /// `(type)of`.
    Cast(TypeName, Box<Node>),
}

/// A type's name in C: `struct file *`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeName {
    /// The words without `const` and `volatile`: `struct file`, `unsigned long`.
    pub words: Vec<String>,
    /// The number of stars.
    pub stars: usize,
}
