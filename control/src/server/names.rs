//! Names that users give to probes.

use std::collections::BTreeMap;

use events::ProbeId;

use crate::api::{Problem, ProblemKind};
use crate::limits::{NAME_BYTES, NAMES};

/// Map from names to probes.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<String, ProbeId>);

impl Names {
    /// Map from probes to names.
    pub(super) fn by_id(&self) -> BTreeMap<ProbeId, String> {
        let all = self.0.iter();
        all.map(|(name, id)| (*id, name.clone())).collect()
    }

    /// The probe with the name `name`.
    pub(super) fn probe(&self, name: &str) -> Option<ProbeId> {
        self.0.get(name).copied()
    }

    /// Gives `id` the name `name`, and removes the former name.
    pub(super) fn give(&mut self, id: ProbeId, name: String) {
        self.forget(id);
        self.0.insert(name, id);
    }

    /// Removes the name of `id`.
    pub(super) fn forget(&mut self, id: ProbeId) {
        self.0.retain(|_, named| *named != id);
    }

    /// Removes the names of all probes rejected by `keep`.
    pub(super) fn retain(&mut self, keep: impl Fn(ProbeId) -> bool) {
        self.0.retain(|_, named| keep(*named));
    }

    /// Checks that `name` is valid and free for `id`, or for a new probe if `id` is `None`.
    pub(super) fn check(&self, name: &str, id: Option<ProbeId>) -> Result<(), Problem> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let is_name = (1..=NAME_BYTES).contains(&name.len())
            && name.chars().all(fits)
            && !name.chars().all(|c| c.is_ascii_digit());
        if !is_name {
            return Err(ProblemKind::Malformed
                .with(format!("`{}` cannot be a probe's name", shortened(name)))
                .help(Some(format!(
                    "use letters, digits, `_`, `-` and `.`, at most {NAME_BYTES}, not all of them digits"
                ))));
        }
        match self.probe(name) {
            Some(taken) if Some(taken) != id => Err(ProblemKind::NameTaken
                .with(format!("the probe {taken} is called `{name}` already"))),
            _ if self.0.len() >= NAMES => {
                Err(ProblemKind::Busy.with(format!("{NAMES} probes have names already")))
            }
            _ => Ok(()),
        }
    }
}

/// The first 80 characters of a text, with an ellipsis if the text is longer.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_given_once_and_taken_back() {
        let mut names = Names::default();
        names.check("writes", None).expect("free");
        names.give(ProbeId::from(1), "writes".to_owned());
        let taken = names.check("writes", None).expect_err("taken");
        assert!(taken.is(ProblemKind::NameTaken), "{taken}");
        names
            .check("writes", Some(ProbeId::from(1)))
            .expect("its own");
        names.give(ProbeId::from(1), "w".to_owned());
        assert_eq!(names.probe("writes"), None);
        assert_eq!(names.by_id()[&ProbeId::from(1)], "w");
        names.retain(|id| id != ProbeId::from(1));
        assert_eq!(names.probe("w"), None);
    }

    #[test]
    fn name_that_could_be_a_number_or_a_path_is_refused() {
        let names = Names::default();
        for wrong in ["", "17", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(names.check(wrong, None).is_err(), "{wrong}");
        }
        for right in ["a", "1a", "a-b_c.d", &"x".repeat(64)] {
            names.check(right, None).expect(right);
        }
    }
}
