//! The places of a processor's task, and of the task's members.

use address::Gva;

use super::CgroupLayout;
use crate::btf::{Btf, Slot};
use crate::{PerCpu, SymbolTable};

/// The largest size of a task's name, bytes; the last byte is zero.
pub const MAX_COMM_BYTES: usize = 64;
/// `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The user of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLayout {
    /// `task_struct.cred`: the credentials with which the task acts.
    pub cred: Slot,
    /// `cred.uid`, the real user: the number in the initial user namespace.
    pub uid: Slot,
}

/// The locations of a processor's task and the task's members.
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
    /// `task_struct.flags`.
    pub flags: Option<Slot>,
    /// `task_struct.real_parent`.
    pub parent: Option<Slot>,
    /// The user.
    pub user: Option<UserLayout>,
    /// `task_struct.cgroups`, and the members behind; absent if the kernel is built without cgroups.
    pub cgroup: Option<(Slot, CgroupLayout)>,
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
        let comm_bytes = usize::try_from(comm.size_bytes).ok()?;
        let fits = (1..=MAX_COMM_BYTES).contains(&comm_bytes) && pid == tid + 4;
        let slot = |path| Slot::find(btf, task, path);
        let user = || {
            Some(UserLayout {
                cred: slot("cred")?,
                uid: Slot::find(btf, btf.struct_named("cred")?, "uid.val")?,
            })
        };
        fits.then(|| Self {
            current,
            tid,
            comm: comm.offset_bytes,
            comm_bytes,
            flags: slot("flags"),
            parent: slot("real_parent"),
            user: user(),
            cgroup: slot("cgroups").zip(CgroupLayout::new(btf)),
        })
    }

    /// Whether a task with `flags` is a thread of the kernel.
    #[must_use]
    pub const fn is_kernel_thread(flags: u64) -> bool {
        flags & KERNEL_THREAD != 0
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
        let user = blob.structure("kuid_t", 4, &[("val", int, 0)]);
        blob.structure("cred", 16, &[("uid", user, 8)]);
        let members = [
            ("pid", int, 8),
            ("tgid", int, 12),
            ("comm", name, 0xbc0),
            ("cred", long, 0xc00),
            ("real_parent", long, 16),
        ];
        blob.structure("task_struct", 0x1000, &members);
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
        let user = old.user.expect("a user");
        assert_eq!((user.cred.at(), user.uid.at()), (0xc00, 8));
        assert_eq!((old.flags, old.cgroup), (None, None));
        assert_eq!(old.parent.map(Slot::at), Some(16));
        assert_eq!(old.current(gs, 0x40_0000), Gva(gs + 0x1fb80));
        let hot = layout("pcpu_hot", 0x35000).expect("6.12");
        assert_eq!(hot.current(gs, 0x40_0000), Gva(gs + 0x35008));
        let new = layout("current_task", 0xffff_ffff_83db_d018).expect("7.2");
        assert_eq!(new.current(0x1000, 0x40_0000), Gva(0xffff_ffff_841b_e018));
    }

    #[test]
    fn kernel_without_the_symbol_has_no_variable() {
        assert_eq!(layout("currant_task", 8), None);
    }
}
