//! Runs an instruction on the host's processor.

#![expect(unsafe_code, reason = "it runs bytes as code")]

use std::ptr;

use address::PAGE_LEN;
use std::sync::{Mutex, MutexGuard};

use crate::faults::{FaultHandlers, HostFault};

/// The offsets on the code page of the instruction and of the branch target.
const INSTRUCTION_OFFSET: usize = 0x100;
const TARGET_OFFSET: usize = 0x180;

/// Registers before and after the run, at offsets known to the assembly below.
#[repr(C)]
struct Context {
    gprs: [u64; 16],
    rflags: u64,
    host_rsp: u64,
    instruction: u64,
    /// Set by the reached stub: 1 behind the instruction, 2 at the branch target; 0 after a fault.
    reached: u64,
}

static mut CONTEXT: Context = Context {
    gprs: [0; 16],
    rflags: 0,
    host_rsp: 0,
    instruction: 0,
    reached: 0,
};

static IN_USE: Mutex<()> = Mutex::new(());

// Entry and exit must not touch a register or flag already loaded or not yet stored, so all values
// go through `CONTEXT`, found from RIP.
std::arch::global_asm!(
    ".globl hyprobe_test_enter",
    "hyprobe_test_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rip + {context} + 136], rsp",
    "push qword ptr [rip + {context} + 128]",
    "popfq",
    "mov rax, [rip + {context} + 0]",
    "mov rcx, [rip + {context} + 8]",
    "mov rdx, [rip + {context} + 16]",
    "mov rbx, [rip + {context} + 24]",
    "mov rsp, [rip + {context} + 32]",
    "mov rbp, [rip + {context} + 40]",
    "mov rsi, [rip + {context} + 48]",
    "mov rdi, [rip + {context} + 56]",
    "mov r8, [rip + {context} + 64]",
    "mov r9, [rip + {context} + 72]",
    "mov r10, [rip + {context} + 80]",
    "mov r11, [rip + {context} + 88]",
    "mov r12, [rip + {context} + 96]",
    "mov r13, [rip + {context} + 104]",
    "mov r14, [rip + {context} + 112]",
    "mov r15, [rip + {context} + 120]",
    "jmp qword ptr [rip + {context} + 144]",
    ".globl hyprobe_test_leave_behind",
    "hyprobe_test_leave_behind:",
    "mov qword ptr [rip + {context} + 152], 1",
    "jmp 2f",
    ".globl hyprobe_test_leave_target",
    "hyprobe_test_leave_target:",
    "mov qword ptr [rip + {context} + 152], 2",
    ".globl hyprobe_test_leave_fault",
    "hyprobe_test_leave_fault:",
    "2:",
    "mov [rip + {context} + 0], rax",
    "mov [rip + {context} + 8], rcx",
    "mov [rip + {context} + 16], rdx",
    "mov [rip + {context} + 24], rbx",
    "mov [rip + {context} + 32], rsp",
    "mov [rip + {context} + 40], rbp",
    "mov [rip + {context} + 48], rsi",
    "mov [rip + {context} + 56], rdi",
    "mov [rip + {context} + 64], r8",
    "mov [rip + {context} + 72], r9",
    "mov [rip + {context} + 80], r10",
    "mov [rip + {context} + 88], r11",
    "mov [rip + {context} + 96], r12",
    "mov [rip + {context} + 104], r13",
    "mov [rip + {context} + 112], r14",
    "mov [rip + {context} + 120], r15",
    "mov rsp, [rip + {context} + 136]",
    "pushfq",
    "pop qword ptr [rip + {context} + 128]",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    context = sym CONTEXT,
);

unsafe extern "C" {
    fn hyprobe_test_enter();
    fn hyprobe_test_leave_behind();
    fn hyprobe_test_leave_target();
    fn hyprobe_test_leave_fault();
}

/// The processor's state after an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// The general registers.
    pub gprs: [u64; 16],
    /// The flags.
    pub rflags: u64,
    /// The place at which the run came out.
    pub end: End,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Behind the instruction.
    Behind,
    /// At [`Native::target`].
    Target,
    /// The instruction raised an exception.
    Fault(HostFault),
}

/// The host's processor, with a page to run code from and memory for the code to work on.
///
/// Both lie below 2 GiB, within reach of every addressing mode. GS starts at the data.
#[derive(Debug)]
pub struct Native {
    code: *mut u8,
    data: *mut u8,
    data_bytes: usize,
    faults: FaultHandlers,
    _alone: MutexGuard<'static, ()>,
}

impl Native {
    /// Maps the memory, and handles this thread's faults; a single value exists at a time.
    ///
    /// # Panics
    ///
    /// If the host gives no memory.
    pub fn new(data_bytes: usize) -> Self {
        let alone = IN_USE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let code = map(
            PAGE_LEN,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        );
        let data = map(data_bytes, libc::PROT_READ | libc::PROT_WRITE);
        const ARCH_SET_GS: libc::c_int = 0x1001;
        // SAFETY: the call takes a number and an address and changes this thread's GS base,
        // which nothing in a 64-bit Linux program uses.
        let done = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, data) };
        assert_eq!(done, 0, "the base of GS cannot be set");
        let leave = hyprobe_test_leave_fault as *const () as u64;
        let native = Self {
            code,
            data,
            data_bytes,
            faults: FaultHandlers::new(code as u64, leave),
            _alone: alone,
        };
        native.put_stub(TARGET_OFFSET, hyprobe_test_leave_target as *const () as u64);
        native
    }

    /// The address of the instruction.
    pub fn instruction(&self) -> u64 {
        self.code as u64 + INSTRUCTION_OFFSET as u64
    }

    /// The address of the branch target.
    pub fn target(&self) -> u64 {
        self.code as u64 + TARGET_OFFSET as u64
    }

    /// The address of the data.
    pub fn data(&self) -> u64 {
        self.data as u64
    }

    /// The base of GS of this thread: the data's address, unless the host has lost it.
    pub fn gs_base(&self) -> u64 {
        const ARCH_GET_GS: libc::c_int = 0x1004;
        let mut base = 0u64;
        // SAFETY: the call writes the base of GS into `base`.
        let done = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_GS, &raw mut base) };
        assert_eq!(done, 0, "the base of GS cannot be read");
        base
    }

    /// Runs an instruction that goes, reads and writes nowhere but where this type says;
    /// `data` is copied in before and out after.
    ///
    /// # Panics
    ///
    /// If `bytes` are more than an instruction has, or `data` has another size than the memory.
    pub(crate) fn run(
        &mut self,
        bytes: &[u8],
        gprs: [u64; 16],
        rflags: u64,
        data: &mut [u8],
    ) -> After {
        assert!(bytes.len() <= 15 && data.len() == self.data_bytes);
        // SAFETY: the code page is writable, private to us, and larger than both offsets
        // together with what is put there.
        unsafe {
            self.code
                .add(INSTRUCTION_OFFSET)
                .copy_from(bytes.as_ptr(), bytes.len())
        };
        let behind = INSTRUCTION_OFFSET + bytes.len();
        self.put_stub(behind, hyprobe_test_leave_behind as *const () as u64);
        // SAFETY: the data mapping has `data_bytes` bytes, which is the length of `data`.
        unsafe { self.data.copy_from(data.as_ptr(), data.len()) };
        let context = &raw mut CONTEXT;
        // SAFETY: `IN_USE` is held, so no other thread uses the context. The function keeps the C
        // calling convention, given that the instruction meets this method's contract: it
        // comes out at one of the two stubs or faults, and the stack it ran on is part of the data.
        let after = unsafe {
            let instruction = self.instruction();
            context.write(Context {
                gprs,
                rflags,
                host_rsp: 0,
                instruction,
                reached: 0,
            });
            hyprobe_test_enter();
            context.read_volatile()
        };
        // SAFETY: as above; the instruction may have changed what is copied.
        unsafe { ptr::copy(self.data, data.as_mut_ptr(), data.len()) };
        let end = match self.faults.take() {
            Some(fault) => End::Fault(fault),
            None if after.reached == 2 => End::Target,
            None => End::Behind,
        };
        After {
            gprs: after.gprs,
            rflags: after.rflags,
            end,
        }
    }

    /// Puts `jmp [rip]` and then the address on the code page.
    fn put_stub(&self, offset: usize, address: u64) {
        let mut stub = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        stub[6..].copy_from_slice(&address.to_le_bytes());
        // SAFETY: the code page is writable, private to us, and goes on beyond both stubs.
        unsafe { self.code.add(offset).copy_from(stub.as_ptr(), stub.len()) };
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: both were mapped by `new` with these sizes, and nothing points into them.
        unsafe {
            libc::munmap(self.code.cast(), PAGE_LEN);
            libc::munmap(self.data.cast(), self.data_bytes);
        }
    }
}

pub(super) fn map(bytes: usize, protection: libc::c_int) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "cannot map memory for code");
    mapped.cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA_BYTES: usize = 64;

    fn end(native: &mut Native, bytes: &[u8], gprs: [u64; 16]) -> End {
        native.run(bytes, gprs, 0x202, &mut [0; DATA_BYTES]).end
    }

    #[test]
    fn fault_is_the_end_of_one_run() {
        let mut native = Native::new(DATA_BYTES);
        // RSP has no stack in any run.
        let gprs = [16; 16];
        let undefined = end(&mut native, &[0x0f, 0x0b], gprs);
        assert!(
            matches!(undefined, End::Fault(HostFault { signal, .. }) if signal == libc::SIGILL)
        );
        // mov rax, [rcx]
        let not_mapped = HostFault {
            signal: libc::SIGSEGV,
            at: 16,
        };
        assert_eq!(
            end(&mut native, &[0x48, 0x8b, 0x01], gprs),
            End::Fault(not_mapped)
        );
        assert_eq!(end(&mut native, &[0x90], gprs), End::Behind);
    }
}
