//! The reader of the ring of records. The guest's kernel can write to the ring at any time, also between two reads.

#![cfg_attr(fuzzing, no_main)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::{Gpa, Gva, PhysMemory, Unreadable};
use probes::fuzzing::{FIRST_SLOT, HEAD, RING_BYTES, Ring, SLOT_BYTES, SLOTS};
use probes::{GuestMemory, Unwritable};

/// What the guest and the reader do, in this order.
#[derive(Arbitrary, Debug)]
enum Step {
    /// The guest writes.
    Write(Damage),
    /// The guest writes after some accesses of the reader.
    Later(u8, Damage),
    /// The guest moves the head.
    Head(Head),
    /// The guest writes a record.
    Record { slot: u16, part: u32 },
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

/// Memory that a guest writes to while it is read.
#[derive(Debug)]
struct Hostile(Mutex<Contents>);

#[derive(Debug)]
struct Contents {
    bytes: Vec<u8>,
    /// Writes of the guest, each after so many accesses.
    later: VecDeque<(u8, Damage)>,
}

fuzz_target!(|steps: Vec<Step>| {
    let memory = Arc::new(Hostile(Mutex::new(Contents {
        bytes: vec![0; RING_BYTES],
        later: VecDeque::new(),
    })));
    let ring = Ring::new(memory.clone());
    for step in steps {
        match step {
            Step::Write(damage) => damage.apply(&mut memory.lock().bytes, 0),
            Step::Later(after, damage) => memory.lock().later.push_back((after, damage)),
            Step::Head(head) => {
                let head = match head {
                    Head::Near(distance) => i64::from(distance).cast_unsigned(),
                    Head::Anywhere(head) => head,
                };
                memory.put(HEAD, &head.to_le_bytes());
            }
            Step::Record { slot, part } => {
                let slot = u64::from(slot) % SLOTS;
                memory.put(FIRST_SLOT + slot * SLOT_BYTES, &part.to_le_bytes());
            }
            Step::Site(site, allowed) => {
                ring.change_site(Gva(site), allowed).expect("memory");
            }
            Step::TakeOut => take_out(&ring),
        }
        let _ = ring.has_records();
    }
    memory.lock().later.clear();
    take_out(&ring);
    let rest = ring.take_out().expect("memory");
    assert!(
        rest.is_empty(),
        "{} records are taken out twice",
        rest.len()
    );
});

fn take_out(ring: &Ring) {
    let parts = ring.take_out().expect("memory");
    assert!(parts.len() as u64 <= SLOTS);
}

impl Hostile {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let range = range(Gpa(at), bytes.len()).expect("in the ring");
        self.lock().bytes[range].copy_from_slice(bytes);
    }

    /// The bytes for one access, after the guest's writes that are due.
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
