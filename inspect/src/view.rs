//! The kernel's memory, symbols and types, at the addresses of the running kernel.

use std::fmt;

use address::Gva;
use introspect::{Btf, SymbolTable};
use thiserror::Error;

/// A range of the kernel's address space without memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot read {len} bytes of the kernel's memory at {at}")]
pub struct NotReadable {
    /// The first address of the range.
    pub at: Gva,
    /// The number of bytes.
    pub len: usize,
}

/// The kernel's address space, without plants: a running guest's or a dump's.
pub trait KernelMemory {
    /// Fills `buf` from `at` on.
    ///
    /// # Errors
    ///
    /// If any byte of the range is not there; the contents of `buf` are then unspecified.
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable>;
}

/// A kernel in memory.
#[derive(Clone, Copy)]
pub struct KernelView<'k> {
    memory: &'k dyn KernelMemory,
    symbols: &'k SymbolTable,
    types: Option<&'k Btf>,
    slide: i64,
}

impl fmt::Debug for KernelView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelView")
            .field("types", &self.types)
            .field("slide", &self.slide)
            .finish_non_exhaustive()
    }
}

impl<'k> KernelView<'k> {
    /// A kernel whose `symbols`, at link-time addresses, have moved by `slide`. `types` are `None` for a kernel without BTF.
    #[must_use]
    pub fn new(
        memory: &'k dyn KernelMemory,
        symbols: &'k SymbolTable,
        types: Option<&'k Btf>,
        slide: i64,
    ) -> Self {
        Self {
            memory,
            symbols,
            types,
            slide,
        }
    }

    /// The kernel's symbols, at link-time addresses.
    #[must_use]
    pub fn symbols(&self) -> &'k SymbolTable {
        self.symbols
    }

    /// The kernel's types.
    #[must_use]
    pub fn types(&self) -> Option<&'k Btf> {
        self.types
    }

    /// The running address of the symbol `name`. A value in the lower half is an offset, which does not move.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Gva> {
        Some(self.running(self.symbols.address_of(name)?))
    }

    /// The running address of a symbol with the link-time value `linked`.
    pub(crate) fn running(&self, linked: Gva) -> Gva {
        let is_address = linked.0.cast_signed() < 0;
        let slide = if is_address { self.slide } else { 0 };
        linked.wrapping_add(slide.cast_unsigned())
    }

    /// The symbol of the kernel's image at the running address `at`, as `name` or `name+0xoffset`.
    #[must_use]
    pub fn symbol_at(&self, at: Gva) -> Option<String> {
        let linked = Gva(at.0.wrapping_sub(self.slide.cast_unsigned()));
        let last = self.symbols.address_of("_end");
        if linked.0.cast_signed() >= 0 || last.is_some_and(|last| linked >= last) {
            return None;
        }
        let found = self.symbols.resolve(linked)?;
        Some(match found.offset {
            0 => found.symbol.name,
            offset => format!("{}+{offset:#x}", found.symbol.name),
        })
    }

    /// Whether a symbol of the kernel's image is at the running address `at`.
    pub(crate) fn begins_symbol(&self, at: Gva) -> bool {
        let linked = Gva(at.0.wrapping_sub(self.slide.cast_unsigned()));
        let found = self.symbols.resolve(linked);
        found.is_some_and(|found| found.offset == 0)
    }

    /// Fills `buf` from `at` on.
    ///
    /// # Errors
    ///
    /// If any byte of the range is not there.
    pub fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        self.memory.read(at, buf)
    }

    /// Reads an unsigned little-endian number of `N` bytes, at most 8.
    fn number<const N: usize>(&self, at: Gva) -> Result<u64, NotReadable> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes[..N])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads 4 bytes as an unsigned number.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn u32(&self, at: Gva) -> Result<u32, NotReadable> {
        // 4 bytes of a number fit.
        Ok(u32::try_from(self.number::<4>(at)?).unwrap_or(u32::MAX))
    }

    /// Reads 8 bytes as an unsigned number.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn u64(&self, at: Gva) -> Result<u64, NotReadable> {
        self.number::<8>(at)
    }

    /// Reads a pointer.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn pointer(&self, at: Gva) -> Result<Gva, NotReadable> {
        Ok(Gva(self.u64(at)?))
    }
}

#[cfg(test)]
mod tests {
    use introspect::SymbolTableBuilder;

    use super::*;

    const BASE: Gva = Gva(0xffff_ffff_8100_0000);
    const SLIDE: i64 = 0x1000;

    /// Bytes at [`BASE`], moved by [`SLIDE`].
    struct Moved(Vec<u8>);

    impl KernelMemory for Moved {
        fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
            let len = buf.len();
            let start = at.0.wrapping_sub(BASE.0).wrapping_sub(0x1000);
            let bytes = usize::try_from(start)
                .ok()
                .and_then(|start| self.0.get(start..)?.get(..len));
            buf.copy_from_slice(bytes.ok_or(NotReadable { at, len })?);
            Ok(())
        }
    }

    #[test]
    fn addresses_move_with_the_kernel_and_offsets_do_not() {
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(BASE, 'D', "init_task");
        symbols.push(Gva(0x1f00), 'D', "current_task");
        let symbols = symbols.build();
        let memory = Moved((1..=16).collect());
        let view = KernelView::new(&memory, &symbols, None, SLIDE);
        let task = view.address_of("init_task").expect("a symbol");
        assert_eq!(task, Gva(BASE.0 + 0x1000));
        assert_eq!(view.address_of("current_task"), Some(Gva(0x1f00)));
        assert_eq!(view.u32(task), Ok(0x0403_0201));
        assert_eq!(view.pointer(task), Ok(Gva(0x0807_0605_0403_0201)));
        assert_eq!(view.symbol_at(task).as_deref(), Some("init_task"));
        assert_eq!(view.symbol_at(Gva(0x1f00)), None);
        let at = Gva(task.0 + 9);
        assert_eq!(view.u64(at), Err(NotReadable { at, len: 8 }));
    }
}
