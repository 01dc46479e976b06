//! The guest's text, before and after.

use introspect::Gva;
use probes::Kernel;
use vm_memory::{Bytes, GuestAddress};
use vmm::PausedGuard;

use super::guest::Live;
use crate::chain::chain;

/// Where the text that stays is.
#[derive(Debug)]
pub(super) struct Text<'k> {
    kernel: &'k Kernel,
    linked: Gva,
    start: GuestAddress,
    bytes: usize,
}

impl<'k> Text<'k> {
    pub(super) fn of(kernel: &'k Kernel) -> Result<Self, String> {
        let text = kernel
            .text()
            .ok_or("the kernel does not say where its text is")?;
        let start = kernel
            .to_physical(text.start)
            .ok_or("the text is nowhere")?;
        Ok(Self {
            kernel,
            linked: text.start,
            start: GuestAddress(start.0),
            bytes: usize::try_from(text.end.0 - text.start.0).map_err(chain)?,
        })
    }

    /// The text without any plant, for as long as this takes. With all vCPUs paused nothing is executed meanwhile.
    pub(super) fn own(&self, live: &Live<'_>, paused: &PausedGuard<'_>) -> Result<Vec<u8>, String> {
        live.engine.disarm_all(paused).map_err(chain)?;
        let mut text = vec![0; self.bytes];
        paused
            .memory()
            .read_slice(&mut text, self.start)
            .map_err(chain)?;
        live.engine.set_armed(paused, true).map_err(chain)?;
        Ok(text)
    }

    /// How many bytes the guest has patched; others must be as they were.
    pub(super) fn patched(&self, before: &[u8], after: &[u8]) -> Result<usize, String> {
        let differ = (self.linked.0..)
            .zip(before.iter().zip(after))
            .filter(|(_, (before, after))| before != after)
            .map(|(at, _)| Gva(at));
        let (own, ours): (Vec<Gva>, Vec<Gva>) =
            differ.partition(|at| self.kernel.sites().overlapping(*at, 1).is_some());
        match ours.first() {
            None => Ok(own.len()),
            Some(first) => Err(format!(
                "{} bytes of the guest's text are not its own, the first at {first}",
                ours.len()
            )),
        }
    }
}
