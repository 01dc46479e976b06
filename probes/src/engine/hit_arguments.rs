//! The arguments at a hit that are in no register, read once for all that needs them.

use crate::arguments::Unread;
use crate::engine::reporter::Reporter;
use crate::handler::HitContext;
use crate::registry::Probe;

/// Where the arguments at a hit are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FoundArguments {
    /// In the registers.
    Registers,
    /// The arguments that were read.
    Read([u64; 6]),
    /// Nowhere: they cannot be read, and a note of the probe has said so.
    Unreadable,
}

impl FoundArguments {
    /// The arguments that are in no register; unreadable ones are 0.
    pub(crate) const fn outside_registers(self) -> Option<[u64; 6]> {
        match self {
            Self::Registers => None,
            Self::Read(arguments) => Some(arguments),
            Self::Unreadable => Some([0; 6]),
        }
    }
}

/// The arguments of a system call or tracepoint at a hit of a probe: for the filter, the aggregate and the event.
#[derive(Debug)]
pub(crate) struct HitArguments<'e> {
    probe: &'e Probe,
    reporter: &'e Reporter,
    /// `None` before the first need.
    found: Option<FoundArguments>,
}

impl<'e> HitArguments<'e> {
    pub(crate) const fn new(probe: &'e Probe, reporter: &'e Reporter) -> Self {
        Self {
            probe,
            reporter,
            found: None,
        }
    }

    /// The arguments that have been read already.
    pub(crate) const fn known(
        probe: &'e Probe,
        reporter: &'e Reporter,
        arguments: [u64; 6],
    ) -> Self {
        Self {
            probe,
            reporter,
            found: Some(FoundArguments::Read(arguments)),
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
