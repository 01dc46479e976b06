//! What the kernel has saved of a task that is on no processor: where the unwinding of its stack starts.
//!
//! `__switch_to_asm` pushes registers on the stack of the task that it leaves, and saves the stack pointer in `thread.sp`.

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;
use introspect::orc::SwitchFrame;

use super::error::TaskListError;
use crate::structs::{NoType, StructType};
use crate::{KernelView, NotReadable};

/// The struct of what `__switch_to_asm` pushes.
const FRAME: &str = "inactive_task_frame";

/// A reader of [`SwitchFrame`]s.
#[derive(Debug)]
pub(crate) struct SwitchFrames {
    /// `thread.sp`.
    sp: Slot,
    /// Absent in kernels that are built for one processor.
    on_cpu: Option<Slot>,
    frame_bytes: usize,
    bp: Slot,
    ip: Slot,
}

impl SwitchFrames {
    /// Takes the places from the types of `view`.
    ///
    /// # Errors
    ///
    /// If the types do not describe what is saved.
    pub(crate) fn new(view: &KernelView<'_>) -> Result<Self, TaskListError> {
        let types = view.types().ok_or(TaskListError::NoTypes)?;
        Ok(Self::of_types(types)?)
    }

    fn of_types(types: &Btf) -> Result<Self, NoType> {
        let task = StructType::named(types, "task_struct")?;
        let frame = StructType::named(types, FRAME)?;
        Ok(Self {
            sp: task.slot("thread.sp")?,
            on_cpu: task.slot("on_cpu").ok(),
            frame_bytes: frame.size()?,
            bp: frame.slot("bp")?,
            ip: frame.slot("ret_addr")?,
        })
    }

    /// What is saved of the task with the `task_struct` at `task`; `None` while a processor runs it.
    ///
    /// # Errors
    ///
    /// If the task or its stack cannot be read.
    pub(crate) fn of(
        &self,
        view: &KernelView<'_>,
        task: Gva,
    ) -> Result<Option<SwitchFrame>, NotReadable> {
        let number = |slot: Slot, base: Gva| {
            let mut bytes = [0; 8];
            let len = slot.size().min(bytes.len());
            view.read(base.wrapping_add(slot.at() as u64), &mut bytes[..len])?;
            Ok(u64::from_le_bytes(bytes))
        };
        if let Some(on_cpu) = self.on_cpu
            && number(on_cpu, task)? != 0
        {
            return Ok(None);
        }
        let frame = Gva(number(self.sp, task)?);
        let ip = number(self.ip, frame)?;
        Ok(Some(SwitchFrame {
            ip,
            sp: frame.0.wrapping_add(self.frame_bytes as u64),
            bp: number(self.bp, frame)?,
            // A new task goes on at the beginning of a function, and no call has pushed the address.
            is_new: view.begins_symbol(Gva(ip)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::Blob;

    use super::*;
    use crate::fake::{Fake, at};

    const TASK: u64 = 0x100;
    const STACK: u64 = 0x800;
    /// `ret_from_fork`.
    const NEW: u64 = 0x40;

    fn kernel() -> Fake {
        let mut blob = Blob::new();
        // `on_cpu` was an `int` once.
        let byte = blob.int("unsigned char", 1);
        let long = blob.int("unsigned long", 8);
        let thread = blob.structure("thread_struct", 16, &[("sp", long, 8)]);
        let members = [
            ("on_cpu", byte, 4),
            ("on_rq", byte, 5),
            ("thread", thread, 0x20),
        ];
        blob.structure("task_struct", 0x40, &members);
        let members = [("bx", long, 0), ("bp", long, 8), ("ret_addr", long, 16)];
        blob.structure(FRAME, 24, &members);
        let mut fake = Fake::new(blob, 0x1000, &[("ret_from_fork", NEW)]);
        fake.point(TASK + 0x28, STACK);
        fake.put64(STACK + 8, 7);
        fake.point(STACK + 16, NEW + 5);
        fake
    }

    fn saved(fake: &Fake) -> Result<Option<SwitchFrame>, NotReadable> {
        let view = fake.view();
        SwitchFrames::new(&view).expect("types").of(&view, at(TASK))
    }

    #[test]
    fn registers_of_a_sleeping_task_are_on_its_stack() {
        let mut fake = kernel();
        let mut frame = SwitchFrame {
            ip: at(NEW + 5).0,
            sp: at(STACK + 24).0,
            bp: 7,
            is_new: false,
        };
        assert_eq!(saved(&fake), Ok(Some(frame)));
        fake.point(STACK + 16, NEW);
        (frame.ip, frame.is_new) = (at(NEW).0, true);
        assert_eq!(saved(&fake), Ok(Some(frame)));
        fake.put(TASK + 5, &[1]);
        assert_eq!(saved(&fake), Ok(Some(frame)));
        fake.put(TASK + 4, &[1]);
        assert_eq!(saved(&fake), Ok(None));
    }

    #[test]
    fn stack_that_is_gone_is_an_error() {
        let mut fake = kernel();
        fake.put64(TASK + 0x28, 0);
        let lost = NotReadable {
            at: Gva(16),
            len: 8,
        };
        assert_eq!(saved(&fake), Err(lost));
        fake.types = None;
        let error = SwitchFrames::new(&fake.view()).expect_err("no types");
        assert_eq!(error, TaskListError::NoTypes);
    }
}
