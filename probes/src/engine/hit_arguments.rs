//! The arguments at a hit that are in no register, read once for all that needs them.

use crate::arguments::Unread;
use crate::engine::reporter::Reporter;
use crate::handler::HitContext;
use crate::registry::{Missed, Probe};

/// Where the arguments at a hit are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FoundArguments {
    /// In the registers.
    Registers,
    /// The arguments that were read.
    Read([u64; 6]),
    /// The values of a mark, some of which may not be known.
    OfMark([Option<u64>; 6]),
    /// Nowhere: they cannot be read, and a note of the probe has said so.
    Unreadable,
}

impl FoundArguments {
    /// The arguments that are in no register; unknown ones are 0.
    pub(crate) fn outside_registers(self) -> Option<[u64; 6]> {
        match self {
            Self::Registers => None,
            Self::Read(arguments) => Some(arguments),
            Self::OfMark(values) => Some(values.map(|value| value.unwrap_or(0))),
            Self::Unreadable => Some([0; 6]),
        }
    }
}

/// Where one argument at a hit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneArgument {
    InRegister,
    Known(u64),
    /// The mark has no such value, or it is not understood or not in memory.
    Unknown,
}

/// The arguments of a system call or tracepoint at a hit of a probe: for the filter, the aggregate and the event.
#[derive(Debug)]
pub(crate) struct HitArguments<'e> {
    probe: &'e Probe,
    reporter: &'e Reporter,
    /// `None` before the first need.
    found: Option<FoundArguments>,
    /// Whether a value of a mark has been needed that is not known.
    lacks_value: bool,
}

impl<'e> HitArguments<'e> {
    pub(crate) const fn new(probe: &'e Probe, reporter: &'e Reporter) -> Self {
        Self {
            probe,
            reporter,
            found: None,
            lacks_value: false,
        }
    }

    /// The values of a mark.
    pub(crate) const fn of_mark(
        probe: &'e Probe,
        reporter: &'e Reporter,
        values: [Option<u64>; 6],
    ) -> Self {
        Self {
            found: Some(FoundArguments::OfMark(values)),
            ..Self::new(probe, reporter)
        }
    }

    /// Where the argument with `number` (from 0) is.
    pub(crate) fn one(&mut self, hit: &mut HitContext<'_>, number: usize) -> OneArgument {
        match self.at(hit) {
            FoundArguments::Registers => OneArgument::InRegister,
            FoundArguments::Read(arguments) => {
                OneArgument::Known(arguments.get(number).copied().unwrap_or(0))
            }
            FoundArguments::OfMark(values) => match values.get(number).copied().flatten() {
                Some(value) => OneArgument::Known(value),
                None => {
                    self.lacks_value = true;
                    OneArgument::Unknown
                }
            },
            FoundArguments::Unreadable => OneArgument::Known(0),
        }
    }

    /// Why a filter or an aggregate has not got what it needs.
    pub(crate) const fn missed(&self) -> Missed {
        match self.lacks_value {
            true => Missed::UnknownValue,
            false => Missed::UnknownTask,
        }
    }

    /// The arguments.
    pub(crate) fn at(&mut self, hit: &mut HitContext<'_>) -> FoundArguments {
        *self
            .found
            .get_or_insert_with(|| match self.probe.argument_source().read(hit) {
                None => FoundArguments::Registers,
                Some(Ok(arguments)) => FoundArguments::Read(arguments),
                Some(Err(why)) => {
                    note_unread(self.probe, self.reporter, &why);
                    FoundArguments::Unreadable
                }
            })
    }
}

fn note_unread(probe: &Probe, reporter: &Reporter, why: &Unread) {
    if probe.is_first_unread() {
        reporter.note(Some(probe), why.to_string());
    }
}
