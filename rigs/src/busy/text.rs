//! The guest's text, before and after.

use address::{Gpa, Gva};
use introspect::KernelInt3;
use introspect::insn::Decoded;
use introspect::int3::{HANDLER, HANDLER_BYTES};
use probes::{At, Kernel};
use vm_memory::{Bytes, GuestAddress};
use vmm::PausedGuard;

use super::guest::Live;
use errors::chain;

/// The location of the kernel's permanent text.
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

    /// The text while all plants are removed for a moment. With all vCPUs paused, nothing is executed meanwhile.
    pub(super) fn own(&self, live: &Live<'_>, paused: &PausedGuard<'_>) -> Result<Vec<u8>, String> {
        live.engine.disarm_all(paused).map_err(chain)?;
        let mut text = vec![0; self.bytes];
        paused
            .memory()
            .read_slice(&mut text, self.start)
            .map_err(chain)?;
        if live.engine.has_detour_region() {
            self.put_handler_back(live, &mut text)?;
        }
        live.engine.set_armed(paused, true).map_err(chain)?;
        Ok(text)
    }

    /// Once an `int3` has redirected to a detour, the kernel's handler of `int3` is redirected to the detour region.
    fn put_handler_back(&self, live: &Live<'_>, text: &mut [u8]) -> Result<(), String> {
        let Some(handler) = self.kernel.symbols().address_of(HANDLER) else {
            return Ok(());
        };
        let offset = usize::try_from(handler.0 - self.linked.0).map_err(chain)?;
        let mut own = [0; HANDLER_BYTES];
        let at = Gpa(self.start.0 + offset as u64);
        live.engine
            .inventory()
            .read(At::Physical(at), &mut own)
            .map_err(chain)?;
        if let Some(int3) = KernelInt3::find(&own, handler)
            && let Some(shown) = text.get_mut(offset..offset + HANDLER_BYTES)
        {
            let pushes = usize::try_from(int3.pushes.0 - handler.0).map_err(chain)?;
            let end = pushes + int3.first.iter().map(Decoded::len).sum::<usize>();
            shown[pushes..end].copy_from_slice(&own[pushes..end]);
        }
        Ok(())
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
