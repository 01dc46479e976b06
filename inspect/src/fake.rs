//! A fake kernel: memory in a vector, symbols, and types.

use address::Gva;
use introspect::btf::synthetic::Blob;
use introspect::{Btf, SymbolTable, SymbolTableBuilder};

use crate::{KernelMemory, KernelView, NotReadable};

/// The address of the memory.
pub(crate) const BASE: Gva = Gva(0xffff_ffff_8100_0000);

/// Memory from [`BASE`] on.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) bytes: Vec<u8>,
    pub(crate) symbols: SymbolTable,
    pub(crate) types: Option<Btf>,
}

impl KernelMemory for Fake {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let start = usize::try_from(at.0.wrapping_sub(BASE.0)).ok();
        let bytes = start.and_then(|start| self.bytes.get(start..)?.get(..len));
        buf.copy_from_slice(bytes.ok_or(NotReadable { at, len })?);
        Ok(())
    }
}

impl Fake {
    /// `len` zeros; the symbols have offsets in the memory.
    pub(crate) fn new(types: Blob, len: usize, symbols: &[(&str, u64)]) -> Self {
        let mut table = SymbolTableBuilder::new();
        for (name, offset) in symbols {
            table.push(at(*offset), 'D', name);
        }
        Self {
            bytes: vec![0; len],
            symbols: table.build(),
            types: Some(Btf::parse(types.finish()).expect("types")),
        }
    }

    pub(crate) fn view(&self) -> KernelView<'_> {
        KernelView::new(self, &self.symbols, self.types.as_ref(), 0)
    }

    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) {
        let start = usize::try_from(offset).expect("small");
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn put64(&mut self, offset: u64, value: u64) {
        self.put(offset, &value.to_le_bytes());
    }

    /// Writes the address of the memory at `to`.
    pub(crate) fn point(&mut self, offset: u64, to: u64) {
        self.put64(offset, at(to).0);
    }
}

/// The address of the memory at `offset`.
pub(crate) fn at(offset: u64) -> Gva {
    BASE.wrapping_add(offset)
}
