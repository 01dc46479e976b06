//! The protected pages of RAM: the pages of watched data, whose writes or accesses exit, and those of probed programs and of hidden plants, whose
//! accesses exit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gpa;
use text::{GuestError, Paused};
use vmm::Protection;

/// The pages, by the reason of their protection. Changed with the vCPUs paused.
#[derive(Debug, Default)]
pub(crate) struct Protections(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    watched: BTreeMap<Gpa, Protection>,
    code: BTreeSet<Gpa>,
    /// The pages of the kernel's text with hidden plants.
    text: BTreeSet<Gpa>,
    /// Whether a vCPU that runs alone may access all pages.
    lifted: bool,
}

impl Protections {
    fn lock(&self) -> MutexGuard<'_, Pages> {
        // A change is stored when it is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Protects exactly these pages of watched data.
    pub(crate) fn watch(
        &self,
        paused: &dyn Paused,
        pages: &BTreeMap<Gpa, Protection>,
    ) -> Result<(), GuestError> {
        let mut now = self.lock();
        apply(paused, pages, now.code.union(&now.text), now.lifted)?;
        now.watched.clone_from(pages);
        Ok(())
    }

    /// Protects exactly these pages of programs.
    pub(crate) fn hide(&self, paused: &dyn Paused, pages: BTreeSet<Gpa>) -> Result<(), GuestError> {
        let mut now = self.lock();
        if now.code != pages {
            apply(paused, &now.watched, pages.union(&now.text), now.lifted)?;
            now.code = pages;
        }
        Ok(())
    }

    /// Protects exactly these pages of the kernel's text.
    pub(crate) fn hide_text(
        &self,
        paused: &dyn Paused,
        pages: BTreeSet<Gpa>,
    ) -> Result<(), GuestError> {
        let mut now = self.lock();
        if now.text != pages {
            apply(paused, &now.watched, now.code.union(&pages), now.lifted)?;
            now.text = pages;
        }
        Ok(())
    }

    /// Lets the guest access the pages, or protects them again.
    pub(crate) fn lift(&self, paused: &dyn Paused, lifted: bool) -> Result<(), GuestError> {
        let mut now = self.lock();
        paused.lift_protection(lifted)?;
        now.lifted = lifted;
        Ok(())
    }
}

fn apply<'p>(
    paused: &dyn Paused,
    watched: &BTreeMap<Gpa, Protection>,
    hidden: impl Iterator<Item = &'p Gpa>,
    lifted: bool,
) -> Result<(), GuestError> {
    let mut all = watched.clone();
    all.extend(hidden.map(|page| (*page, Protection::Accesses)));
    paused.protect_pages(&all)?;
    if lifted {
        // A vCPU that runs alone has reached a probe whose hit changes the pages.
        paused.lift_protection(true)?;
    }
    Ok(())
}
