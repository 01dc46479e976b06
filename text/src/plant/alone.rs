//! Memory while one vCPU runs alone: original bytes at some plants, and stops at other addresses.
//!
//! A stop is a plant without a probe, on any page of RAM. On a page with a copy of its original bytes, a stop is a mark. On any other page,
//! a stop is *loose*: [`LooseStops`](super::loose_stops::LooseStops) holds the original byte, and [`ShownAlone`] restores the byte unless the
//! guest has written there meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use address::Gpa;

use super::page::{Mark, Page};
use super::planter::Planter;
use crate::guest::{Paused, Unwritable};

/// The changes of memory for a vCPU that runs alone. [`end`](Self::end) or a drop reverts them.
#[derive(Debug)]
pub struct ShownAlone<'p> {
    planter: &'p Planter,
    /// The marks, in the order of their setting.
    marks: Vec<(Arc<Page>, Gpa, Mark)>,
    loose: Vec<Gpa>,
}

impl Planter {
    /// Shows the original byte at the plants `open`, and a plant at `stops`; addresses outside RAM are left out. Bytes shown already, by an
    /// outer call for the same vCPU, belong to the outer value.
    ///
    /// # Errors
    ///
    /// If memory cannot be written; then memory is unchanged.
    pub fn show_alone(
        &self,
        _paused: &dyn Paused,
        open: &[Gpa],
        stops: &[Gpa],
    ) -> Result<ShownAlone<'_>, Unwritable> {
        let mut shown = ShownAlone {
            planter: self,
            marks: Vec::with_capacity(open.len() + stops.len()),
            loose: Vec::new(),
        };
        for &gpa in open {
            shown.mark(gpa, Mark::Open)?;
        }
        let (kept, others): (Vec<Gpa>, Vec<Gpa>) =
            stops.iter().partition(|gpa| self.pages.keeps(**gpa));
        for gpa in kept {
            shown.mark(gpa, Mark::Stop)?;
        }
        shown.stop(&others)?;
        Ok(shown)
    }

    /// Whether memory does not show the plant at `gpa` because the vCPU that runs alone is to execute the original byte. Without any open
    /// plant, the check is one load.
    #[inline]
    pub fn is_open(&self, gpa: Gpa) -> bool {
        self.open.load(Ordering::Acquire) > 0 && self.pages.has(Mark::Open, gpa)
    }
}

impl ShownAlone<'_> {
    fn mark(&mut self, gpa: Gpa, mark: Mark) -> Result<(), Unwritable> {
        let Some(page) = self.planter.pages.kept(gpa) else {
            return Ok(());
        };
        if !self.planter.pages.has(mark, gpa) {
            self.marks.push((Arc::clone(&page), gpa, mark));
            if mark == Mark::Open {
                self.planter.open.fetch_add(1, Ordering::AcqRel);
            }
            self.planter.mark(&page, gpa, &[(mark, true)])?;
        }
        Ok(())
    }

    /// Sets stops on pages without a copy of their original bytes.
    fn stop(&mut self, stops: &[Gpa]) -> Result<(), Unwritable> {
        let memory = self.planter.memory.as_ref();
        let new: Vec<(Gpa, u8)> = stops
            .iter()
            .filter(|gpa| self.planter.loose.own(**gpa).is_none())
            .filter_map(|&gpa| Some((gpa, memory.read_u8(gpa).ok()?)))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        // The original bytes are stored before the stops are written, so that no reader takes a stop for the guest's byte.
        self.planter
            .loose
            .update(|bytes| bytes.extend_from_slice(&new));
        self.loose.extend(new.iter().map(|(gpa, _)| *gpa));
        new.iter()
            .try_for_each(|(gpa, _)| memory.write(*gpa, &[self.planter.byte().value()]))
    }

    /// Restores memory.
    ///
    /// # Errors
    ///
    /// If memory cannot be written; the other bytes are restored.
    pub fn end(mut self) -> Result<(), Unwritable> {
        self.undo()
    }

    fn undo(&mut self) -> Result<(), Unwritable> {
        let mut failed = Ok(());
        for (page, gpa, mark) in self.marks.drain(..).rev() {
            failed = failed.and(self.planter.mark(&page, gpa, &[(mark, false)]));
            if mark == Mark::Open {
                self.planter.open.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let gone: Vec<Gpa> = self.loose.drain(..).collect();
        for &gpa in &gone {
            failed = failed.and(end_loose(self.planter, gpa));
        }
        if !gone.is_empty() {
            let kept = |bytes: &mut Vec<(Gpa, u8)>| bytes.retain(|(gpa, _)| !gone.contains(gpa));
            self.planter.loose.update(kept);
        }
        failed
    }
}

fn end_loose(planter: &Planter, gpa: Gpa) -> Result<(), Unwritable> {
    // The planter has copied the page meanwhile, and knows the original byte.
    if let Some(page) = planter.pages.kept(gpa) {
        return planter.mark(&page, gpa, &[(Mark::Stop, false)]);
    }
    let memory = planter.memory.as_ref();
    match (planter.loose.own(gpa), memory.read_u8(gpa)) {
        (Some(own), Ok(byte)) if byte == planter.byte().value() => memory.write(gpa, &[own]),
        _ => Ok(()),
    }
}

impl Drop for ShownAlone<'_> {
    fn drop(&mut self) {
        // Marks or stops are left only after an error, and that error is reported.
        let _ = self.undo();
    }
}

#[cfg(test)]
mod tests {
    use introspect::PhysMemory as _;

    use super::*;
    use crate::PlantByte;
    use crate::guest::GuestMemory;
    use crate::plant::Spot;
    use crate::testing::{FakeMemory, FakePaused};

    const PLANT: u8 = PlantByte::Port.value();
    const PLANTED: Gpa = Gpa(0x1010);
    const KEPT: Gpa = Gpa(0x1020);
    const LOOSE: Gpa = Gpa(0x2030);

    struct Rig {
        memory: Arc<FakeMemory>,
        paused: FakePaused,
        planter: Planter,
    }

    /// A plant, and memory whose bytes are the lowest bytes of their addresses.
    fn rig() -> Rig {
        let bytes = (0..0x3000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let memory = Arc::new(FakeMemory::new(bytes));
        let planter = Planter::new(Arc::clone(&memory) as Arc<dyn GuestMemory>, PlantByte::Port);
        let paused = FakePaused::beside(&memory);
        planter
            .change(&paused, &[(Spot::contiguous(PLANTED), 1)], &[])
            .expect("planted");
        Rig {
            memory,
            paused,
            planter,
        }
    }

    impl Rig {
        fn seen(&self) -> [u8; 3] {
            [PLANTED, KEPT, LOOSE].map(|gpa| self.memory.read_u8(gpa).expect("memory"))
        }

        fn own(&self) -> [u8; 3] {
            [PLANTED, KEPT, LOOSE].map(|gpa| self.planter.read_u8(gpa).expect("memory"))
        }

        fn show(&self) -> Result<ShownAlone<'_>, Unwritable> {
            self.planter
                .show_alone(&self.paused, &[PLANTED], &[KEPT, LOOSE])
        }
    }

    #[test]
    fn stops_and_own_bytes_show_until_it_ends() {
        let rig = rig();
        let shown = rig.show().expect("shown");
        assert_eq!(rig.seen(), [0x10, PLANT, PLANT]);
        assert_eq!(rig.own(), [0x10, 0x20, 0x30]);
        assert!(rig.planter.is_open(PLANTED) && !rig.planter.is_open(KEPT));
        shown.end().expect("ended");
        assert_eq!(rig.seen(), [PLANT, 0x20, 0x30]);
        drop(rig.show().expect("shown"));
        assert_eq!(rig.seen(), [PLANT, 0x20, 0x30]);
    }

    #[test]
    fn address_outside_memory_is_left_out() {
        let rig = rig();
        let shown = rig
            .planter
            .show_alone(&rig.paused, &[Gpa(0x9000)], &[Gpa(0x9000), LOOSE]);
        assert_eq!(rig.seen()[2], PLANT);
        shown.and_then(ShownAlone::end).expect("shown and ended");
        assert_eq!(rig.own(), [0x10, 0x20, 0x30]);
    }

    #[test]
    fn the_guest_may_write_to_all_of_it() {
        let rig = rig();
        let shown = rig.show().expect("shown");
        for gpa in [PLANTED, KEPT] {
            rig.planter.guest_write(gpa, &[0x99]).expect("merged");
        }
        rig.memory.put(LOOSE.0, &[0x99]);
        assert_eq!(rig.seen(), [0x99, PLANT, 0x99]);
        assert_eq!(rig.own(), [0x99; 3]);
        shown.end().expect("ended");
        assert_eq!(rig.seen(), [PLANT, 0x99, 0x99]);
        assert_eq!(rig.own(), [0x99; 3]);
    }

    #[test]
    fn one_within_another_ends_first() {
        let rig = rig();
        let outer = rig.show().expect("shown");
        let inner = rig
            .planter
            .show_alone(&rig.paused, &[], &[PLANTED, KEPT, LOOSE])
            .expect("shown");
        assert_eq!(rig.seen(), [PLANT; 3]);
        inner.end().expect("ended");
        assert_eq!(rig.seen(), [0x10, PLANT, PLANT]);
        outer.end().expect("ended");
        assert_eq!(rig.seen(), [PLANT, 0x20, 0x30]);
    }

    #[test]
    fn plants_may_change_meanwhile() {
        let rig = rig();
        let shown = rig.show().expect("shown");
        // The page of the loose stop gets a plant, and the other page loses its only plant.
        let add = [(Spot::contiguous(Gpa(0x2040)), 1)];
        rig.planter
            .change(&rig.paused, &add, &[PLANTED])
            .expect("changed");
        shown.end().expect("ended");
        assert_eq!(rig.seen(), [0x10, 0x20, 0x30]);
        assert_eq!(rig.own(), [0x10, 0x20, 0x30]);
        assert_eq!(rig.memory.read_u8(Gpa(0x2040)), Ok(PLANT));
    }

    /// Whichever write fails, all changes are reverted.
    #[test]
    fn nothing_is_left_behind_when_it_fails() {
        let rig = rig();
        for n in 1..=3 {
            rig.memory.requests.fail(n);
            assert!(rig.show().is_err(), "write {n}");
            rig.memory.requests.fail(0);
            assert_eq!(rig.seen(), [PLANT, 0x20, 0x30], "write {n}");
            assert_eq!(rig.own(), [0x10, 0x20, 0x30]);
        }
        rig.memory.requests.fail(4);
        rig.show()
            .expect("three writes suffice")
            .end()
            .expect_err("the fourth undoes one");
    }
}
