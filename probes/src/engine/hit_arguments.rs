//! The arguments at a hit that are in no register, read once for all that needs them.

use crate::arguments::Unread;
use crate::engine::reporter::Reporter;
use crate::handler::HitContext;
use crate::registry::Probe;

/// The arguments of a system call or tracepoint at a hit of a probe: for the filter, the aggregate and the event.
#[derive(Debug)]
pub(crate) struct HitArguments<'e> {
    probe: &'e Probe,
    reporter: &'e Reporter,
    /// `None` before the first need; within, `None` for unreadable arguments.
    read: Option<Option<[u64; 6]>>,
}

impl<'e> HitArguments<'e> {
    pub(crate) const fn new(probe: &'e Probe, reporter: &'e Reporter) -> Self {
        Self {
            probe,
            reporter,
            read: None,
        }
    }

    /// The arguments; `None` if registers have them. Within, `None` if the arguments cannot be read, which a note of the probe says once.
    pub(crate) fn at(&mut self, hit: &mut HitContext<'_>) -> Option<Option<[u64; 6]>> {
        if self.probe.arguments.is_registers() {
            return None;
        }
        Some(*self.read.get_or_insert_with(|| {
            let read = self.probe.arguments.read(hit)?;
            read.map_err(|why| tell(self.probe, self.reporter, &why))
                .ok()
        }))
    }
}

fn tell(probe: &Probe, reporter: &Reporter, why: &Unread) {
    if probe.is_first_unread() {
        reporter.note(Some(probe), why.to_string());
    }
}
