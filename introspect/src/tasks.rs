//! Which task a processor runs, and which processor it is.
//!
//! Each processor keeps a pointer to the task that it runs, at a fixed place in its own data, which `gs` points to while
//! it is in the kernel. What that place is called has changed: `current_task` up to 6.1, the beginning of `pcpu_hot` up
//! to 6.14, `current_task` again. Up to 6.14 the symbol is an offset into the processor's data; since then it is an
//! address in the kernel's image, which moves with the kernel, and `gs` is the distance from there. So it is the sum of
//! the two that counts, either way. Its number is kept so too: `cpu_number`, in `pcpu_hot` meanwhile.

use crate::{Gva, SymbolTable, btf::Btf};

/// What `comm` can hold; the last byte is zero.
const MAX_COMM_BYTES: u64 = 64;

/// Where a processor's task and its name are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLayout {
    /// From `gs` to the pointer to `struct task_struct`, at link-time addresses.
    pub current: Gva,
    /// From `gs` to the number of the processor, 32 bits, at link-time addresses; `None` if the kernel does not say.
    pub processor: Option<Gva>,
    /// Offset of the name in `struct task_struct`, bytes.
    pub comm: u64,
    /// Size of the name with the zero behind it, bytes.
    pub comm_bytes: usize,
}

impl TaskLayout {
    /// As the kernel's types and names say; `None` if they do not.
    #[must_use]
    pub fn new(btf: &Btf, symbols: &SymbolTable) -> Option<Self> {
        let task = btf.struct_named("task_struct")?;
        let comm = btf.member(task, "comm")?;
        let kept = |symbol: &str| {
            symbols.address_of(symbol).or_else(|| {
                let hot = btf.struct_named("pcpu_hot")?;
                let member = btf.member(hot, symbol)?;
                let hot = symbols.address_of("pcpu_hot")?;
                Some(hot.wrapping_add(member.offset_bytes))
            })
        };
        let current = kept("current_task")?;
        let fits = (1..=MAX_COMM_BYTES).contains(&comm.size_bytes);
        Some(Self {
            current,
            processor: kept("cpu_number"),
            comm: comm.offset_bytes,
            comm_bytes: usize::try_from(comm.size_bytes).ok().filter(|_| fits)?,
        })
    }

    /// Where the pointer to the current task is, on a processor whose `gs` has this base, in a kernel that has moved by
    /// `slide`.
    #[must_use]
    pub fn current(&self, gs_base: u64, slide: i64) -> Gva {
        self.current_from_gs(slide).wrapping_add(gs_base)
    }

    /// The same, as it is counted from `gs`.
    #[must_use]
    pub fn current_from_gs(&self, slide: i64) -> Gva {
        moved(self.current, slide)
    }

    /// Where the number of the processor is, 32 bits, as it is counted from `gs`; `None` if the kernel does not say.
    #[must_use]
    pub fn processor_from_gs(&self, slide: i64) -> Option<Gva> {
        Some(moved(self.processor?, slide))
    }
}

/// An offset is no address of the kernel's, and does not move with it.
fn moved(at: Gva, slide: i64) -> Gva {
    let is_address = at.0.cast_signed() < 0;
    let slide = if is_address { slide } else { 0 };
    at.wrapping_add(slide.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;
    use crate::btf::synthetic::Blob;

    fn layout(symbol: &str, at: u64) -> Option<TaskLayout> {
        let mut blob = Blob::new();
        let byte = blob.int("char", 1);
        let long = blob.int("long unsigned int", 8);
        let name = blob.array(byte, 16);
        blob.structure(
            "task_struct",
            0x1000,
            &[("pid", long, 8), ("comm", name, 0xbc0)],
        );
        blob.structure(
            "pcpu_hot",
            64,
            &[("cpu_number", long, 0), ("current_task", long, 8)],
        );
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(Gva(at), 'D', symbol);
        let btf = Btf::parse(blob.finish()).expect("types");
        TaskLayout::new(&btf, &symbols.build())
    }

    #[test]
    fn an_offset_does_not_move_and_an_address_does() {
        let gs = 0xffff_8880_0dc0_0000;
        let old = layout("current_task", 0x1fb80).expect("6.1");
        assert_eq!((old.comm, old.comm_bytes), (0xbc0, 16));
        assert_eq!(old.current(gs, 0x40_0000), Gva(gs + 0x1fb80));
        let hot = layout("pcpu_hot", 0x35000).expect("6.12");
        assert_eq!(hot.current(gs, 0x40_0000), Gva(gs + 0x35008));
        assert_eq!(hot.processor_from_gs(0x40_0000), Some(Gva(0x35000)));
        assert_eq!(old.processor_from_gs(0), None, "it does not say");
        let new = layout("current_task", 0xffff_ffff_83db_d018).expect("7.2");
        assert_eq!(new.current(0x1000, 0x40_0000), Gva(0xffff_ffff_841b_e018));
    }

    #[test]
    fn a_kernel_that_does_not_say_has_none() {
        assert_eq!(layout("currant_task", 8), None);
    }
}
