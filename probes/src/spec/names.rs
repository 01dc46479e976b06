//! The names under which a probe, or each of those that a pattern stands for, is told.

use std::fmt::{self, Write as _};

use introspect::glob_matches;

use super::{Location, ProbeSpec};

impl ProbeSpec {
    /// Whether `name` is that of this probe, or of one that this pattern stands for, as events and summaries have it.
    #[must_use]
    pub fn stands_for(&self, name: &str) -> bool {
        let Location::Glob(pattern) = &self.location else {
            return self.is_called(name);
        };
        let Some(place) = name
            .strip_prefix(self.kind.keyword())
            .and_then(|rest| rest.strip_prefix(':'))
        else {
            return false;
        };
        match (&self.module, place.split_once(':')) {
            (None, None) => place == pattern || glob_matches(pattern, place),
            (Some(module), Some((of, symbol))) => {
                of == module && (symbol == pattern || glob_matches(pattern, symbol))
            }
            _ => false,
        }
    }

    /// Whether it is written so, without writing it down for each event.
    fn is_called(&self, name: &str) -> bool {
        // Most names are those of other functions, and this comparison is fast.
        if let Location::Symbol {
            name: symbol,
            offset: 0,
        } = &self.location
            && !name.ends_with(symbol.as_str())
        {
            return false;
        }
        let mut rest = Rest(name);
        write!(rest, "{self}").is_ok() && rest.0.is_empty()
    }
}

/// What is left of a name behind what has been written.
struct Rest<'n>(&'n str);

impl fmt::Write for Rest<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
        Ok(())
    }
}
