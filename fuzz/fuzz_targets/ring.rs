//! The reader of the ring of records. The guest's kernel can write to the ring at any time, also between two reads.

#![cfg_attr(fuzzing, no_main)]

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use detour::fuzzing::{FIRST_SLOT, HEAD, RING_BYTES, Ring, SLOT_BYTES, SLOTS};
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::{PhysMemory, Unreadable};
use text::{GuestMemory, Unwritable};

/// A guest and the reader of the ring.
#[derive(Arbitrary, Debug)]
struct Case {
    /// Whether the guest's kernel writes to the ring. Otherwise, only detours do, and each record has an identity.
    is_hostile: bool,
    steps: Vec<Step>,
}

/// An action of the guest or of the reader.
#[derive(Arbitrary, Debug)]
enum Step {
    /// The guest writes.
    Write(Damage),
    /// The guest writes after some accesses of the reader.
    Later(u8, Damage),
    /// The guest moves the head.
    Head(Head),
    /// A detour writes a record.
    Record { slot: u16 },
    /// A site of returns is allowed or forbidden.
    Site(u64, bool),
    /// The reader takes records out.
    TakeOut,
}

#[derive(Arbitrary, Debug)]
enum Head {
    /// Relative to zero, where both ends begin.
    Near(i16),
    Anywhere(u64),
}

/// Memory with writes of the guest between the reader's accesses.
#[derive(Debug)]
struct Hostile(Mutex<Contents>);

#[derive(Debug)]
struct Contents {
    bytes: Vec<u8>,
    /// Later writes of the guest, each with the number of accesses before the write.
    later: VecDeque<(u8, Damage)>,
}

fuzz_target!(|case: Case| {
    let memory = Arc::new(Hostile(Mutex::new(Contents {
        bytes: vec![0; RING_BYTES],
        later: VecDeque::new(),
    })));
    let ring = Ring::new(memory.clone());
    let mut records = Records::default();
    for step in case.steps {
        match step {
            Step::Write(_) | Step::Later(..) if !case.is_hostile => (),
            Step::Write(damage) => damage.apply(&mut memory.lock().bytes, 0),
            Step::Later(after, damage) => memory.lock().later.push_back((after, damage)),
            Step::Head(head) => {
                let head = match head {
                    Head::Near(distance) => i64::from(distance).cast_unsigned(),
                    Head::Anywhere(head) => head,
                };
                memory.put(HEAD, &head.to_le_bytes());
            }
            Step::Record { slot } => {
                let slot = u64::from(slot) % SLOTS;
                let record = records.next();
                memory.put(FIRST_SLOT + slot * SLOT_BYTES, &record.to_le_bytes());
            }
            Step::Site(site, allowed) => {
                ring.change_site(Gva(site), allowed).expect("memory");
            }
            Step::TakeOut => {
                records.take_out(&ring, case.is_hostile);
            }
        }
        let _ = ring.has_records();
    }
    memory.lock().later.clear();
    // A call skips slots that an earlier call has taken out, and a step may have written such a slot again: a detour cannot. A call that
    // moves the tail therefore leaves records to the next one.
    let calls = (0..=SLOTS).position(|_| records.take_out(&ring, case.is_hostile) == 0);
    assert!(calls.is_some(), "the ring never becomes empty");
});

/// The records written by detours and not taken out yet.
#[derive(Debug, Default)]
struct Records {
    written: u32,
    left: BTreeSet<u32>,
}

impl Records {
    /// The identity of a new record.
    fn next(&mut self) -> u32 {
        self.written += 1;
        self.left.insert(self.written);
        self.written
    }

    /// Takes records out. Without a hostile guest, the reader finds written records only, and each at most once.
    fn take_out(&mut self, ring: &Ring, is_hostile: bool) -> usize {
        let parts = ring.take_out().expect("memory");
        assert!(parts.len() as u64 <= SLOTS);
        let count = parts.len();
        for record in parts {
            let is_left = self.left.remove(&record);
            assert!(is_left || is_hostile, "record {record} is taken out again");
        }
        count
    }
}

impl Hostile {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let range = range(Gpa(at), bytes.len()).expect("in the ring");
        self.lock().bytes[range].copy_from_slice(bytes);
    }

    /// The bytes for one access, after the guest's due writes.
    fn access(&self) -> MutexGuard<'_, Contents> {
        let mut contents = self.lock();
        while let Some((after, _)) = contents.later.front_mut() {
            if *after > 0 {
                *after -= 1;
                break;
            }
            if let Some((_, damage)) = contents.later.pop_front() {
                damage.apply(&mut contents.bytes, 0);
            }
        }
        contents
    }
}

fn range(gpa: Gpa, len: usize) -> Option<Range<usize>> {
    let start = usize::try_from(gpa.0).ok()?;
    let end = start.checked_add(len)?;
    (end <= RING_BYTES).then_some(start..end)
}

impl PhysMemory for Hostile {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let len = buf.len();
        let range = range(gpa, len).ok_or(Unreadable { gpa, len })?;
        buf.copy_from_slice(&self.access().bytes[range]);
        Ok(())
    }
}

impl GuestMemory for Hostile {
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
        let len = bytes.len();
        let range = range(gpa, len).ok_or(Unwritable { gpa, len })?;
        self.access().bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        let len = new.len();
        let range = range(gpa, len).ok_or(Unwritable { gpa, len })?;
        let place = &mut self.access().bytes[range];
        let is_same = place == old;
        if is_same {
            place.copy_from_slice(new);
        }
        Ok(is_same)
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        vec![Gpa(0)..Gpa(RING_BYTES as u64)]
    }
}
