//! What memory shows while one vCPU runs alone: the guest's own bytes at some plants, and stops elsewhere.
//!
//! A stop is a plant that nobody asked for, on any page of RAM. Where the page's own bytes are kept, it is a mark like
//! any other. Elsewhere it is *loose*: the own byte is kept here, and put back unless the guest has written there
//! meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use introspect::Gpa;

use super::page::{Mark, Page};
use super::planter::Planter;
use crate::guest::{Paused, Unwritable};

/// Own bytes under loose stops. Few, and for a moment; read by whoever reads memory.
#[derive(Debug, Default)]
pub(super) struct Loose {
    bytes: ArcSwap<Vec<(Gpa, u8)>>,
    /// Not less than there are of them: most of the time there is none, and one load tells.
    most: AtomicUsize,
    /// Locked by whoever changes them.
    change: Mutex<()>,
}

impl Loose {
    fn update(&self, change: impl FnOnce(&mut Vec<(Gpa, u8)>)) {
        let _lock = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::clone(&self.bytes.load());
        change(&mut bytes);
        let len = bytes.len();
        self.most.fetch_max(len, Ordering::AcqRel);
        self.bytes.store(Arc::new(bytes));
        self.most.store(len, Ordering::Release);
    }

    fn own(&self, gpa: Gpa) -> Option<u8> {
        let bytes = self.bytes.load();
        let found = bytes.iter().find(|(at, _)| *at == gpa);
        found.map(|(_, own)| *own)
    }

    /// Replaces the stops in `buf`, which was read from `gpa` on, by the guest's own bytes. Where `buf` does not have
    /// the plant's byte, the guest has written something else.
    pub(super) fn uncover(&self, gpa: Gpa, buf: &mut [u8], plant: u8) {
        if self.most.load(Ordering::Acquire) == 0 {
            return;
        }
        for &(at, own) in self.bytes.load().iter() {
            let index = at.offset_from(gpa).and_then(|i| usize::try_from(i).ok());
            if let Some(byte) = index.and_then(|i| buf.get_mut(i))
                && *byte == plant
            {
                *byte = own;
            }
        }
    }
}

/// Memory shows what a vCPU that runs alone needs, until this is ended or dropped.
#[derive(Debug)]
pub(crate) struct ShownAlone<'p> {
    planter: &'p Planter,
    /// In the order in which they were made.
    marks: Vec<(Arc<Page>, Gpa, Mark)>,
    loose: Vec<Gpa>,
}

impl Planter {
    /// Lets memory show the guest's own byte at the plants `open`, and a plant at `stops`; those that are not in RAM
    /// are left out. What shows so already, because this vCPU runs alone already, is left to whoever made it so.
    ///
    /// # Errors
    ///
    /// When memory cannot be written; then it shows what it did before.
    pub(crate) fn show_alone(
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
        let (kept, others): (Vec<Gpa>, Vec<Gpa>) = stops.iter().partition(|gpa| self.keeps(**gpa));
        for gpa in kept {
            shown.mark(gpa, Mark::Stop)?;
        }
        shown.stop(&others)?;
        Ok(shown)
    }

    /// Whether the plant at `gpa` does not show because the vCPU that runs alone is to execute the guest's own byte.
    /// While none does so, this costs a load.
    pub(crate) fn is_open(&self, gpa: Gpa) -> bool {
        self.open.load(Ordering::Acquire) > 0 && self.has(Mark::Open, gpa)
    }
}

impl ShownAlone<'_> {
    fn mark(&mut self, gpa: Gpa, mark: Mark) -> Result<(), Unwritable> {
        let Some(page) = self.planter.kept(gpa) else {
            return Ok(());
        };
        if !self.planter.has(mark, gpa) {
            self.marks.push((Arc::clone(&page), gpa, mark));
            if mark == Mark::Open {
                self.planter.open.fetch_add(1, Ordering::AcqRel);
            }
            self.planter.mark(&page, gpa, &[(mark, true)])?;
        }
        Ok(())
    }

    /// Stops on pages whose own bytes are not kept.
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
        // Known before they show, so that nobody reads them for the guest's.
        self.planter
            .loose
            .update(|bytes| bytes.extend_from_slice(&new));
        self.loose.extend(new.iter().map(|(gpa, _)| *gpa));
        new.iter()
            .try_for_each(|(gpa, _)| memory.write(*gpa, &[self.planter.byte().value()]))
    }

    /// Memory shows again what it did before.
    ///
    /// # Errors
    ///
    /// When memory cannot be written; the rest of it shows what it did.
    pub(crate) fn end(mut self) -> Result<(), Unwritable> {
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
    // The page has become one whose bytes are kept meanwhile, and knows the own byte.
    if let Some(page) = planter.kept(gpa) {
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
        // Only left to do when something has failed, which is what is told.
        let _ = self.undo();
    }
}

#[cfg(test)]
mod tests {
    use introspect::PhysMemory as _;

    use super::*;
    use crate::PlantByte;
    use crate::guest::GuestMemory;
    use crate::guest::fake::{FakeMemory, FakePaused};
    use crate::plant::Spot;

    const PLANT: u8 = PlantByte::Port.value();
    const PLANTED: Gpa = Gpa(0x1010);
    const KEPT: Gpa = Gpa(0x1020);
    const LOOSE: Gpa = Gpa(0x2030);

    struct Rig {
        memory: Arc<FakeMemory>,
        paused: FakePaused,
        planter: Planter,
    }

    /// A plant, and memory that says at each address what its lowest byte is.
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
    fn what_is_not_memory_is_left_out() {
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
        // The page of the loose stop gets a plant, and that of the other loses its one.
        let add = [(Spot::contiguous(Gpa(0x2040)), 1)];
        rig.planter
            .change(&rig.paused, &add, &[PLANTED])
            .expect("changed");
        shown.end().expect("ended");
        assert_eq!(rig.seen(), [0x10, 0x20, 0x30]);
        assert_eq!(rig.own(), [0x10, 0x20, 0x30]);
        assert_eq!(rig.memory.read_u8(Gpa(0x2040)), Ok(PLANT));
    }

    /// Whichever write fails, what could be shown is undone.
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
