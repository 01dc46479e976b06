//! The names of probes, and of a pattern's matches, in events and summaries.

use std::fmt::{self, Write as _};

use introspect::glob_matches;

use super::{Location, ProbeKind, ProbeSpec};

/// Whether a pattern can have the match `name`: no place within a function, no address, and no part of a function that the compiler has
/// given a name of its own.
fn is_function_name(name: &str) -> bool {
    let is_place = name.contains('+') || name.starts_with("0x");
    let is_part =
        name.starts_with("__pfx_") || name.starts_with("__cfi_") || name.contains(".cold");
    !is_place && !is_part
}

impl ProbeSpec {
    /// Whether `name`, from an event or a summary, is the name of the probe, or of a match of the pattern.
    #[must_use]
    pub fn stands_for(&self, name: &str) -> bool {
        if self.kind == ProbeKind::Tracepoint {
            return self.is_tracepoint(name);
        }
        let Location::Glob(pattern) = &self.location else {
            return self.is_called(name);
        };
        let Some(place) = name
            .strip_prefix(self.kind.keyword())
            .and_then(|rest| rest.strip_prefix(':'))
        else {
            return false;
        };
        let matches =
            |name: &str| name == pattern || (glob_matches(pattern, name) && is_function_name(name));
        match (&self.module, place.split_once(':')) {
            (None, None) => matches(place),
            (Some(module), Some((of, symbol))) => module.is_called(of) && matches(symbol),
            _ => false,
        }
    }

    /// Whether `name` is that of a site of the tracepoint, which follows `@` if there are several.
    fn is_tracepoint(&self, name: &str) -> bool {
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let Some(("tracepoint", name)) = name.split_once(':') else {
            return false;
        };
        match &self.location {
            Location::Symbol { name: own, .. } => own == name,
            Location::Glob(pattern) => pattern == name || glob_matches(pattern, name),
            Location::Address(_)
            | Location::Line { .. }
            | Location::Inlined(_)
            | Location::Data(_)
            | Location::Program(_) => false,
        }
    }

    /// Whether the specification's text is `name`. No text is allocated, since the check runs for each event.
    fn is_called(&self, name: &str) -> bool {
        // Most names belong to other functions, and the comparison of the ends is fast.
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

/// The rest of a name, behind the text already compared.
struct Rest<'n>(&'n str);

impl fmt::Write for Rest<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
        Ok(())
    }
}
