//! The origin of a write to watched bytes: its address and its name.

use std::sync::Arc;

use address::Gva;
use introspect::insn::{Decoded, boundaries};
use introspect::{PagingState, Symbol, read_virt};

use crate::engine::watch::Watches;
use crate::engine::watch::memory::Origin;
use crate::kernel::MAX_FUNCTION_BYTES;

/// The origin of a write, for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// The instruction that writes, or that was interrupted.
    pub(crate) ip: Gva,
    /// `symbol+0xoffset`, with the module; the address, without a symbol; `delivery of vector 0x…`.
    pub(crate) symbol: Arc<str>,
}

impl Watches {
    /// The address and the name of `origin`. An instruction in a detour or a copy stands for the original instruction.
    pub(crate) fn writer(&self, origin: Origin) -> Writer {
        let (Origin::Instruction(at) | Origin::Delivery { at, .. }) = origin;
        let displaced = self.detour.displaced_at(at);
        let ip = displaced.map_or(at, |displaced| displaced.ip);
        let symbol = match origin {
            Origin::Instruction(_) => self.kernel_symbol(ip).or_else(|| self.module_symbol(ip)),
            Origin::Delivery { vector, .. } => Some(format!("delivery of vector {vector:#x}")),
        };
        Writer {
            ip,
            symbol: symbol.unwrap_or_else(|| ip.to_string()).into(),
        }
    }

    fn kernel_symbol(&self, ip: Gva) -> Option<String> {
        let linked = self.running.located.get()?.linked(ip);
        let kernel = &self.running.kernel;
        if !kernel.image().contains(&linked) {
            return None;
        }
        let found = kernel.symbols().resolve(linked)?;
        Some(format!("{}+{:#x}", found.symbol.name, found.offset))
    }

    fn module_symbol(&self, ip: Gva) -> Option<String> {
        let module = self.running.modules.holding(ip)?;
        let symbol = function_of(module.symbols(), ip)?;
        let offset = ip.offset_from(symbol.address)?;
        Some(format!("{}+{offset:#x} [{}]", symbol.name, module.name()))
    }

    /// The instruction in front of `rip`, by the function's original bytes; `rip` itself if the bytes do not tell.
    pub(crate) fn in_front_of(&self, paging: &PagingState, rip: Gva) -> Gva {
        self.previous(paging, rip).map_or(rip, |before| before.at())
    }

    /// The instruction that ends at `rip`, by the original bytes of the function.
    pub(super) fn previous(&self, paging: &PagingState, rip: Gva) -> Option<Decoded> {
        let last = Gva(rip.0.checked_sub(1)?);
        let (start, code) = match self.detour.laid_at(last) {
            Some(laid) => {
                let mut code = vec![0; bytes_between(laid.entry, rip)?];
                self.detour.read_at(laid.entry, &mut code)?;
                (laid.entry, code)
            }
            None => self.function_up_to(paging, last)?,
        };
        let all = boundaries(&code, start).map_while(Result::ok);
        let before = all.last()?;
        (before.next() == rip).then_some(before)
    }

    /// The original bytes of the function with the byte at `last`, up to the byte, and their address.
    fn function_up_to(&self, paging: &PagingState, last: Gva) -> Option<(Gva, Vec<u8>)> {
        let start = self.function_start(last)?;
        let mut code = vec![0; bytes_between(start, last.checked_add(1)?)?];
        read_virt(&self.running.planter.own(), paging, start, &mut code).ok()?;
        Some((start, code))
    }
}

impl Watches {
    /// The start of the function of the kernel or of a module with the byte at `at`.
    pub(super) fn function_start(&self, at: Gva) -> Option<Gva> {
        let linked = self.running.located.get()?.linked(at);
        if !self.running.kernel.image().contains(&linked) {
            let module = self.running.modules.holding(at)?;
            return Some(function_of(module.symbols(), at)?.address);
        }
        let found = self.running.kernel.symbols().resolve(linked)?;
        let start = Gva(at.0.checked_sub(found.offset)?);
        found.symbol.is_text().then_some(start)
    }
}

/// The function with the byte at `at`, of a module with `symbols` in the order of their addresses.
fn function_of(symbols: &[Symbol], at: Gva) -> Option<&Symbol> {
    let after = symbols.partition_point(|symbol| symbol.address <= at);
    let mut before = symbols[..after].iter().rev();
    before.find(|symbol| symbol.is_text())
}

/// The number of bytes from `start` to `end`, if a function can have as many.
fn bytes_between(start: Gva, end: Gva) -> Option<usize> {
    let len = end
        .offset_from(start)
        .filter(|len| *len <= MAX_FUNCTION_BYTES)?;
    usize::try_from(len).ok()
}
