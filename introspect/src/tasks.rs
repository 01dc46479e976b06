//! Which task a processor runs.

use address::Gva;

use crate::{PerCpu, SymbolTable, btf::Btf};

/// The largest size of `comm`; the last byte is zero.
const MAX_COMM_BYTES: u64 = 64;

/// The locations of a processor's task and the task's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLayout {
    /// The pointer to `struct task_struct`.
    current: PerCpu,
    /// Offset of the thread's number (`pid` in the kernel) in `struct task_struct`, 4 bytes; the process's number (`tgid` in the kernel) is
    /// behind it, 4 bytes.
    pub tid: u64,
    /// Offset of the name in `struct task_struct`, bytes.
    pub comm: u64,
    /// Size of the name including the final zero, bytes.
    pub comm_bytes: usize,
}

impl TaskLayout {
    /// The layout from the kernel's types and symbols; `None` if they lack a part.
    #[must_use]
    pub fn new(btf: &Btf, symbols: &SymbolTable) -> Option<Self> {
        let task = btf.struct_named("task_struct")?;
        let comm = btf.member(task, "comm")?;
        let number = |name| btf.member(task, name).filter(|it| it.size_bytes == 4);
        let current = PerCpu::current_task(Some(btf), symbols)?;
        let (tid, pid) = (number("pid")?.offset_bytes, number("tgid")?.offset_bytes);
        let fits = (1..=MAX_COMM_BYTES).contains(&comm.size_bytes) && pid == tid + 4;
        Some(Self {
            current,
            tid,
            comm: comm.offset_bytes,
            comm_bytes: usize::try_from(comm.size_bytes).ok().filter(|_| fits)?,
        })
    }

    /// The address of the pointer to the current task, on a processor with the base `gs_base` in
    /// `gs`, in a kernel moved by `slide`.
    #[must_use]
    pub fn current(&self, gs_base: u64, slide: i64) -> Gva {
        self.current.at(gs_base, slide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;
    use crate::btf::synthetic::Blob;

    fn layout(symbol: &str, at: u64) -> Option<TaskLayout> {
        let mut blob = Blob::new();
        let byte = blob.int("char", 1);
        let int = blob.int("int", 4);
        let long = blob.int("long unsigned int", 8);
        let name = blob.array(byte, 16);
        blob.structure(
            "task_struct",
            0x1000,
            &[("pid", int, 8), ("tgid", int, 12), ("comm", name, 0xbc0)],
        );
        blob.structure("pcpu_hot", 64, &[("x", long, 0), ("current_task", long, 8)]);
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(Gva(at), 'D', symbol);
        let btf = Btf::parse(blob.finish()).expect("types");
        TaskLayout::new(&btf, &symbols.build())
    }

    #[test]
    fn an_offset_does_not_move_and_an_address_does() {
        let gs = 0xffff_8880_0dc0_0000;
        let old = layout("current_task", 0x1fb80).expect("6.1");
        assert_eq!((old.tid, old.comm, old.comm_bytes), (8, 0xbc0, 16));
        assert_eq!(old.current(gs, 0x40_0000), Gva(gs + 0x1fb80));
        let hot = layout("pcpu_hot", 0x35000).expect("6.12");
        assert_eq!(hot.current(gs, 0x40_0000), Gva(gs + 0x35008));
        let new = layout("current_task", 0xffff_ffff_83db_d018).expect("7.2");
        assert_eq!(new.current(0x1000, 0x40_0000), Gva(0xffff_ffff_841b_e018));
    }

    #[test]
    fn a_kernel_that_does_not_say_has_none() {
        assert_eq!(layout("currant_task", 8), None);
    }
}
