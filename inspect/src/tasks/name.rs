//! The name of a kernel thread.
//!
//! `comm` has room for 15 characters. A kernel thread's `struct kthread` has the whole name, and the worker of a workqueue adds the
//! workqueue that it works for: `kworker/0:1-events`. `/proc` shows these names.

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::{Reads, ReadsError, until_zero};
use crate::structs::{NoType, StructType};

/// `PF_WQ_WORKER`.
const WORKER: u64 = 0x20;
/// The buffer in which `/proc` makes a name has 64 bytes.
const MAX_NAME_BYTES: usize = 63;
/// The beginning of the name of a workqueue's rescuer, since 6.9.
const RESCUER: &str = "kworker/R-";
/// `WORKER_DESC_LEN` is 32, `WQ_NAME_LEN` too.
const MAX_PART_BYTES: u64 = 64;

/// The members from a kernel thread to its name.
#[derive(Debug)]
pub(super) struct WorkerLayout {
    /// The pointer to `struct kthread` in `task_struct`.
    pub(super) thread: Slot,
    /// Absent up to 5.16.
    full_name: Option<Slot>,
    worker: Slot,
    pool: Slot,
    work: Slot,
    description: std::ops::Range<usize>,
    rescues: Slot,
    queue_name: std::ops::Range<usize>,
}

impl WorkerLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let task = StructType::named(btf, "task_struct")?;
        let thread = StructType::named(btf, "kthread")?;
        let worker = StructType::named(btf, "worker")?;
        let queue = StructType::named(btf, "workqueue_struct")?;
        Ok(Self {
            // `set_child_tid` up to 5.16: a kernel thread has no other use for it.
            thread: task
                .slot("worker_private")
                .or_else(|_| task.slot("set_child_tid"))?,
            full_name: thread.slot("full_name").ok(),
            worker: thread.slot("data")?,
            pool: worker.slot("pool")?,
            work: worker.slot("current_work")?,
            description: worker.bytes("desc", MAX_PART_BYTES)?,
            rescues: worker.slot("rescue_wq")?,
            queue_name: queue.bytes("name", MAX_PART_BYTES)?,
        })
    }

    /// The name of the kernel thread with the bytes `task`, `comm` and `flags`; `None` if `comm` is the whole name.
    pub(super) fn of(
        &self,
        reads: &Reads<'_>,
        task: &[u8],
        comm: &str,
        flags: u64,
    ) -> Result<Option<String>, ReadsError> {
        let Some(thread) = self.thread.read(task).filter(|at| *at != 0).map(Gva) else {
            return Ok(None);
        };
        if flags & WORKER != 0 {
            return self.of_worker(reads, thread, comm);
        }
        let Some(slot) = self.full_name else {
            return Ok(None);
        };
        match reads.pointer(thread, slot)? {
            Some(name) => reads.string(name, MAX_NAME_BYTES).map(Some),
            None => Ok(None),
        }
    }

    fn of_worker(
        &self,
        reads: &Reads<'_>,
        thread: Gva,
        comm: &str,
    ) -> Result<Option<String>, ReadsError> {
        let Some(worker) = reads.pointer(thread, self.worker)? else {
            return Ok(None);
        };
        let mut name = comm.to_owned();
        if comm.starts_with(RESCUER)
            && let Some(queue) = reads.pointer(worker, self.rescues)?
        {
            let queue = queue.wrapping_add(self.queue_name.start as u64);
            let queue = until_zero(&reads.bytes(queue, self.queue_name.len())?);
            name = format!("{RESCUER}{queue}");
        }
        if reads.pointer(worker, self.pool)?.is_some() {
            let at = worker.wrapping_add(self.description.start as u64);
            let description = until_zero(&reads.bytes(at, self.description.len())?);
            let works = reads.pointer(worker, self.work)?.is_some();
            if !description.is_empty() {
                name.push(if works { '+' } else { '-' });
                name.push_str(&description);
            }
        }
        let end = name.floor_char_boundary(MAX_NAME_BYTES);
        name.truncate(end);
        Ok(Some(name))
    }
}
