//! The ring: the records of detours, and their reader.
//!
//! ```text
//!             taken out      taken          free
//!  slots   ┌───────────┬───────────────┬──────────────┐
//!          └───────────┴───────────────┴──────────────┘
//!                      ▲               ▲        ▲
//!                     tail            head     head may come so far: LIMIT behind tail
//!  a slot  [ who | cpu ][ tsc ][ 16 registers ][ flags ][ top ][ tid | pid ][ comm ][ uid | task flags ]    who = 0: not written, or not yet
//! ```
//!
//! A detour checks for room, takes a slot with `lock xadd` on the head, fills the slot, and writes `who` last: on x86 no
//! processor sees `who` before the rest. Interrupts are off meanwhile, so no task sleeps between taking and filling a slot.
//! Between check and `xadd`, other processors may take slots, and so may an NMI of the same processor. Therefore [`SLACK`] slots
//! never count as room.
//!
//! A thread takes records out under the reader's lock, in the order in which slots were taken. The reader clears `who`, and then
//! moves the tail, up to the first slot that is not written yet. The reader also takes out later slots that are written, and
//! remembers their numbers. No reader therefore waits for a processor that has taken a slot and stands still. After a processor
//! has left the guest, all its earlier records are in the ring. The tail in guest memory is a copy: no guest write makes the
//! reader look elsewhere, or further than once around.
//!
//! Behind the slots lies a table of return addresses. A call that returns to an address in the table may be recorded, because a
//! plant is at its return site. A detour finds an address at the index given by its hash. The table holds one address for each
//! hash; calls that return to the others exit.

use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use text::{GuestError, GuestMemory};

use super::DetourError;
use super::processor::{NAME_BYTES, RecordedTask, RecordedUser};

/// The number of slots; a power of two.
pub(crate) const SLOTS: u64 = 8192;
/// Three cache lines.
pub(crate) const SLOT_BYTES: u64 = SLOT_LEN as u64;
const SLOT_LEN: usize = 192;
/// More than the processors between check and `xadd`, each with an NMI on top: KVM gives a guest 254.
const SLACK: u64 = 1024;
/// The maximum number of slots that are taken and not taken out.
pub(crate) const LIMIT: u64 = SLOTS - SLACK;

/// The offset of the head, on a cache line of its own; the tail has another.
pub(crate) const HEAD: u64 = 0;
pub(crate) const TAIL: u64 = 64;
/// Not 0 until the ring is open; a detour that drops hits while the ring is full checks the value.
pub(super) const CLOSED: u64 = 128;
/// The offset of the first slot.
pub(crate) const FIRST: u64 = 4096;

/// Offset in a slot: the number of the detour part.
pub(super) const PART_NUMBER: u64 = 0;
pub(super) const CPU: u64 = 4;
pub(super) const TSC: u64 = 8;
/// In the processor's order: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15. `rsp` is [`RSP_BELOW`] less than the guest's.
pub(super) const REGISTERS: u64 = 16;
/// The bytes that a detour has pushed when it stores `rsp`.
pub(super) const RSP_BELOW: i32 = 32;
pub(super) const FLAGS: u64 = REGISTERS + 16 * 8;
/// The value at the stack pointer; of calls only.
pub(super) const TOP: u64 = FLAGS + 8;
/// The numbers of the thread and the process, 4 bytes each, and the task's name.
pub(super) const TID: u64 = TOP + 8;
pub(super) const PID: u64 = TID + 4;
pub(super) const COMM: u64 = PID + 4;
/// The user's number and the task's flags, 4 bytes each.
pub(super) const UID: u64 = COMM + NAME_BYTES as u64;
pub(super) const TASK_FLAGS: u64 = UID + 4;
/// The process's number in a record without a task.
pub(super) const NO_PROCESS: i32 = -1;
/// The user's number in a record without a user: the kernel's `INVALID_UID`.
pub(super) const NO_USER: i32 = -1;

const _: () = assert!(TASK_FLAGS + 4 <= SLOT_BYTES && SLOTS.is_power_of_two());

/// The offset of the table of return addresses.
pub(super) const SITES: u64 = FIRST + SLOTS * SLOT_BYTES;
/// The number of bits of an index into the table.
const SITE_BITS: u32 = 12;
/// The factor of the hash: the lower 32 bits of an address times the factor. The upper [`SITE_BITS`] are the index.
pub(super) const SITE_FACTOR: u32 = 0x9e37_79b1;
pub(super) const SITE_SHIFT: u32 = u32::BITS - SITE_BITS;

const _: () = assert!(SITES + 8 * (1 << SITE_BITS) <= super::place::REGION_BYTES);

/// The offset of an address in the table of return addresses.
pub(super) fn site_offset(site: Gva) -> u64 {
    let [a, b, c, d, ..] = site.0.to_le_bytes();
    let low = u32::from_le_bytes([a, b, c, d]);
    u64::from(low.wrapping_mul(SITE_FACTOR) >> SITE_SHIFT) * 8
}

/// The record of a hit, written by a detour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The number of the detour part.
    pub part_number: u32,
    /// The processor's number in the guest.
    pub cpu: u32,
    /// The processor's time stamp counter.
    pub tsc: u64,
    /// RIP is 0.
    pub regs: vmm::kvm_regs,
    /// The return address of a call.
    pub returns_to: Gva,
    /// The task; `None` if the kernel does not say where it is.
    pub task: Option<RecordedTask>,
}

/// The ring of a detour region, and its reader.
pub struct Ring {
    memory: Arc<dyn GuestMemory>,
    gpa: Gpa,
    /// The address in the guest's kernel.
    pub(super) base: Gva,
    reader: Mutex<Reader>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ring").field(&self.base).finish()
    }
}

/// The state of the reader.
#[derive(Debug)]
struct Reader {
    tail: u64,
    /// The slots behind the tail that have been taken out.
    ahead: BTreeSet<u64>,
    /// Whether detours find room.
    is_open: bool,
}

impl Ring {
    /// A ring in `memory`, which is all zero and mapped at `base` in the guest's kernel. Detours find the ring full until opened.
    pub fn new(memory: Arc<dyn GuestMemory>, gpa: Gpa, base: Gva) -> Result<Self, DetourError> {
        let ring = Self {
            memory,
            gpa,
            base,
            reader: Mutex::new(Reader {
                tail: 0,
                ahead: BTreeSet::new(),
                is_open: false,
            }),
        };
        ring.publish(&ring.reader())?;
        Ok(ring)
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the tail to guest memory.
    fn publish(&self, reader: &Reader) -> Result<(), GuestError> {
        let shown = if reader.is_open {
            reader.tail
        } else {
            reader.tail.wrapping_sub(SLOTS)
        };
        let closed = u64::from(!reader.is_open).to_le_bytes();
        self.memory.write(self.gpa.wrapping_add(CLOSED), &closed)?;
        let at = self.gpa.wrapping_add(TAIL);
        Ok(self.memory.write(at, &shown.to_le_bytes())?)
    }

    /// Whether detours may find room.
    pub fn is_open(&self) -> bool {
        self.reader().is_open
    }

    /// Opens the ring for detours.
    ///
    /// # Errors
    ///
    /// If the ring's memory cannot be written.
    pub fn open(&self) -> Result<(), GuestError> {
        let mut reader = self.reader();
        reader.is_open = true;
        self.publish(&reader)
    }

    fn site(&self, site: Gva) -> Gpa {
        self.gpa.wrapping_add(SITES + site_offset(site))
    }

    /// Lets detours record calls that return to `site`, which has a plant.
    ///
    /// # Errors
    ///
    /// If the ring's memory cannot be written.
    pub fn allow(&self, site: Gva) -> Result<(), GuestError> {
        let at = self.site(site);
        // Every call that exits comes here; most of the time the address is in the table already.
        if self.memory.read_u64(at)? != site.0 {
            self.memory.write(at, &site.0.to_le_bytes())?;
        }
        Ok(())
    }

    /// Ends the recording of calls that return to `site`. No vCPU runs.
    ///
    /// # Errors
    ///
    /// If the ring's memory cannot be used.
    pub fn forbid(&self, site: Gva) -> Result<(), GuestError> {
        let at = self.site(site);
        self.memory
            .compare_exchange(at, &site.0.to_le_bytes(), &[0; 8])?;
        Ok(())
    }

    /// Whether a slot is taken and not taken out. The call never waits for a lock.
    pub fn has_records(&self) -> bool {
        let head = self.memory.read_u64(self.gpa.wrapping_add(HEAD));
        let shown = self.memory.read_u64(self.gpa.wrapping_add(TAIL));
        head.ok() != shown.ok()
    }

    /// Takes the records out, and passes each to `report`. Any thread may call the function; one thread at a time runs.
    ///
    /// # Errors
    ///
    /// If the ring's memory cannot be used.
    pub fn take_out(&self, mut report: impl FnMut(Record)) -> Result<(), GuestError> {
        let mut reader = self.reader();
        let head = self.memory.read_u64(self.gpa.wrapping_add(HEAD))?;
        // The guest may have written any value there.
        let taken = head.wrapping_sub(reader.tail).min(SLOTS);
        let end = reader.tail.wrapping_add(taken);
        let before = reader.tail;
        let mut number = reader.tail;
        while number != end {
            if !reader.ahead.contains(&number)
                && let Some(record) = self.take_one(number)?
            {
                if number == reader.tail {
                    reader.tail = number.wrapping_add(1);
                } else {
                    reader.ahead.insert(number);
                }
                report(record);
            }
            number = number.wrapping_add(1);
        }
        while let tail = reader.tail
            && reader.ahead.remove(&tail)
        {
            reader.tail = tail.wrapping_add(1);
        }
        if reader.tail != before {
            self.publish(&reader)?;
        }
        Ok(())
    }

    /// The record in slot `number`, if written.
    fn take_one(&self, number: u64) -> Result<Option<Record>, GuestError> {
        let at = self.gpa.wrapping_add(FIRST + number % SLOTS * SLOT_BYTES);
        let mut slot = [0; SLOT_LEN];
        if !self.is_written(at)? {
            return Ok(None);
        }
        // The record is read after `who`, which was written after the record.
        fence(Ordering::Acquire);
        self.memory.read(at, &mut slot)?;
        self.memory.write(at, &[0; 8])?;
        Ok(Some(Record::read(&slot)))
    }

    fn is_written(&self, slot: Gpa) -> Result<bool, GuestError> {
        let mut part_number = [0; 4];
        self.memory
            .read(slot.wrapping_add(PART_NUMBER), &mut part_number)?;
        Ok(part_number != [0; 4])
    }
}

/// The task in a slot.
fn recorded_task(tid: u32, pid: u32, comm: [u64; 2], user: RecordedUser) -> Option<RecordedTask> {
    let mut name = [0; NAME_BYTES];
    let (words, _) = name.as_chunks_mut::<8>();
    for (bytes, word) in words.iter_mut().zip(comm) {
        *bytes = word.to_le_bytes();
    }
    (pid != NO_PROCESS.cast_unsigned()).then_some(RecordedTask {
        tid,
        pid,
        comm: name,
        user: (user.uid != NO_USER.cast_unsigned()).then_some(user),
    })
}

impl Record {
    /// Writes a record to slot `number` of a ring at guest-physical 0, as a detour does.
    #[cfg(feature = "bench-internals")]
    pub fn leave(memory: &dyn GuestMemory, number: u64) -> Result<(), GuestError> {
        let mut slot = [0; SLOT_LEN];
        slot[0] = 1;
        let ring = Gpa(0);
        memory.write(
            ring.wrapping_add(FIRST + number % SLOTS * SLOT_BYTES),
            &slot,
        )?;
        let head = (number + 1).to_le_bytes();
        Ok(memory.write(ring.wrapping_add(HEAD), &head)?)
    }

    fn read(slot: &[u8; SLOT_LEN]) -> Self {
        let bytes = |at: u64, len: usize| {
            let at = usize::try_from(at).unwrap_or(0);
            let mut value = [0; 8];
            value[..len].copy_from_slice(&slot[at..at + len]);
            u64::from_le_bytes(value)
        };
        let half = |at: u64| u32::try_from(bytes(at, 4)).unwrap_or(0);
        let register = |number: u64| bytes(REGISTERS + 8 * number, 8);
        let comm = [bytes(COMM, 8), bytes(COMM + 8, 8)];
        let user = RecordedUser {
            uid: half(UID),
            flags: half(TASK_FLAGS),
        };
        Self {
            part_number: half(PART_NUMBER),
            cpu: half(CPU),
            tsc: bytes(TSC, 8),
            returns_to: Gva(bytes(TOP, 8)),
            task: recorded_task(half(TID), half(PID), comm, user),
            regs: vmm::kvm_regs {
                rax: register(0),
                rcx: register(1),
                rdx: register(2),
                rbx: register(3),
                rsp: register(4).wrapping_add_signed(RSP_BELOW.into()),
                rbp: register(5),
                rsi: register(6),
                rdi: register(7),
                r8: register(8),
                r9: register(9),
                r10: register(10),
                r11: register(11),
                r12: register(12),
                r13: register(13),
                r14: register(14),
                r15: register(15),
                rflags: bytes(FLAGS, 8),
                rip: 0,
            },
        }
    }
}
