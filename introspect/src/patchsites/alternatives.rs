//! Alternatives.
