//! Boots one batch after the other, until each function has been in a successful boot or is named.

use super::outcome::{FindingKind, FunctionId, Outcome, Tally};
use super::search::{Boots, Culprit, culprit};

/// The maximum number of unrepeatable failures searched in a batch; then the rest of the batch is reported unchanged.
const AT_TIMES_MAX: usize = 3;

/// The result of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub(super) tally: Tally,
    pub(super) culprits: Vec<Culprit>,
}

impl Swept {
    fn at_times(&self) -> usize {
        let at_times = |found: &&Culprit| found.kind == FindingKind::HarmfulAtTimes;
        self.culprits.iter().filter(at_times).count()
    }
}

/// What is left to do in a batch.
#[derive(Debug)]
enum Task {
    /// Boot these functions.
    Boot(Vec<FunctionId>),
    /// The guest with this set seemed to hang; the halves of the set have been judged since.
    Halved {
        hanging: Culprit,
        /// The number of culprits before the halves.
        culprits: usize,
    },
}

/// Boots `batch`. If the guest is harmed, the search finds a culprit, and the rest of the batch is booted. If the boot is slow,
/// each half is booted; if the guest seemed to hang, and not in the halves, the set is reported.
pub(super) fn sweep<B: Boots>(boots: &mut B, batch: &[FunctionId]) -> Result<Swept, B::Error> {
    let mut swept = Swept::default();
    let mut waiting = vec![Task::Boot(batch.to_vec())];
    while let Some(task) = waiting.pop() {
        let mut set = match task {
            Task::Boot(set) => set,
            Task::Halved { hanging, culprits } => {
                if swept.culprits.len() == culprits {
                    swept.culprits.push(hanging);
                }
                continue;
            }
        };
        if set.is_empty() {
            continue;
        }
        match boots.boot(&set)? {
            Outcome::Well(tally) => swept.tally.add(&tally),
            Outcome::Slow { reason, hangs } if set.len() == 1 => swept.culprits.push(Culprit {
                kind: match hangs {
                    true => FindingKind::Harmful,
                    false => FindingKind::TooSlow,
                },
                functions: set,
                reason,
            }),
            Outcome::Slow { reason, hangs } => {
                let hanging = hangs.then(|| Culprit {
                    kind: FindingKind::HarmfulAtTimes,
                    functions: set.clone(),
                    reason,
                });
                waiting.extend(hanging.map(|hanging| Task::Halved {
                    hanging,
                    culprits: swept.culprits.len(),
                }));
                let second = set.split_off(set.len() / 2);
                waiting.extend([Task::Boot(second), Task::Boot(set)]);
            }
            Outcome::Harmed { reason, .. } if swept.at_times() >= AT_TIMES_MAX => {
                swept.culprits.push(Culprit {
                    kind: FindingKind::HarmfulAtTimes,
                    functions: set,
                    reason,
                });
            }
            Outcome::Harmed { reason, suspects } => {
                let found = culprit(boots, &set, &reason, &suspects)?;
                let taken_out = taken_out(&found, &set);
                set.retain(|function| !taken_out.contains(function));
                waiting.push(Task::Boot(set));
                swept.culprits.push(found);
            }
        }
    }
    Ok(swept)
}

/// The functions to leave out of the next boot. Of a set that failed by chance, only the last function is left out, so that the
/// others are judged once more. At least one function is left out, to make the sweep end.
fn taken_out(found: &Culprit, set: &[FunctionId]) -> Vec<FunctionId> {
    let last = found.functions.last().or(set.last()).copied();
    match found.kind {
        FindingKind::HarmfulAtTimes => last.into_iter().collect(),
        _ => found.functions.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use super::*;

    /// A guest that fails according to `fails`, without a boot.
    struct Fake<F> {
        fails: F,
        booted: RefCell<BTreeMap<Vec<FunctionId>, Outcome>>,
        boots: usize,
    }

    impl<F: FnMut(&[u32]) -> Outcome> Fake<F> {
        fn new(fails: F) -> Self {
            Self {
                fails,
                booted: RefCell::default(),
                boots: 0,
            }
        }
    }

    impl<F: FnMut(&[u32]) -> Outcome> Boots for Fake<F> {
        type Error = Infallible;

        fn boot(&mut self, set: &[FunctionId]) -> Result<Outcome, Infallible> {
            let mut key = set.to_vec();
            key.sort_unstable();
            if let Some(outcome) = self.booted.borrow().get(&key) {
                return Ok(outcome.clone());
            }
            let outcome = self.boot_again(set)?;
            self.booted.borrow_mut().insert(key, outcome.clone());
            Ok(outcome)
        }

        fn boot_again(&mut self, set: &[FunctionId]) -> Result<Outcome, Infallible> {
            self.boots += 1;
            let mut ids: Vec<u32> = set.iter().map(|function| function.0).collect();
            ids.sort_unstable();
            Ok((self.fails)(&ids))
        }
    }

    fn well(set: &[u32]) -> Outcome {
        Outcome::Well(Tally {
            disabled: 1,
            probed: set.len() as u64,
            ..Tally::default()
        })
    }

    fn harmed(reason: &str, suspects: &[u32]) -> Outcome {
        Outcome::Harmed {
            reason: reason.to_owned(),
            suspects: suspects.iter().copied().map(FunctionId).collect(),
        }
    }

    fn slow(hangs: bool) -> Outcome {
        Outcome::Slow {
            reason: "over the limit".to_owned(),
            hangs,
        }
    }

    fn batch(len: u32) -> Vec<FunctionId> {
        (0..len).map(FunctionId).collect()
    }

    fn swept(len: u32, fails: impl FnMut(&[u32]) -> Outcome) -> (Swept, usize) {
        let mut fake = Fake::new(fails);
        let Ok(mut swept) = sweep(&mut fake, &batch(len));
        swept.culprits.sort_by_key(|found| found.functions.clone());
        (swept, fake.boots)
    }

    fn names(swept: &Swept) -> Vec<(FindingKind, Vec<u32>)> {
        let ids = |found: &Culprit| found.functions.iter().map(|function| function.0).collect();
        let mut names: Vec<(FindingKind, Vec<u32>)> = swept
            .culprits
            .iter()
            .map(|found| (found.kind, ids(found)))
            .collect();
        names.iter_mut().for_each(|(_, ids)| ids.sort_unstable());
        names
    }

    #[test]
    fn clean_batch_takes_one_boot() {
        let (swept, boots) = swept(5000, well);
        assert_eq!((swept.tally.probed, boots), (5000, 1));
        assert!(swept.culprits.is_empty());
    }

    #[test]
    fn each_harmful_function_is_named_and_the_others_are_judged() {
        let bad = [0, 17, 18, 4999];
        let (swept, boots) = swept(5000, |set| {
            let found = bad.iter().find(|bad| set.contains(bad));
            found.map_or(well(set), |bad| {
                harmed(&format!("triple fault at {bad}"), &[])
            })
        });
        let expected: Vec<_> = bad.map(|bad| (FindingKind::Harmful, vec![bad])).into();
        assert_eq!(names(&swept), expected);
        assert_eq!(swept.culprits[3].reason, "triple fault at 4999");
        assert_eq!(swept.tally.probed, 4996);
        assert!(boots < 4 * 15 + 1, "{boots}");
    }

    #[test]
    fn suspects_make_the_search_short() {
        let (swept, boots) = swept(5000, |set| {
            if set.contains(&4321) {
                harmed("livelock", &[4321])
            } else {
                well(set)
            }
        });
        assert_eq!(names(&swept), [(FindingKind::Harmful, vec![4321])]);
        // The boots: all, the suspect, and all without the suspect.
        assert_eq!(boots, 3);
    }

    #[test]
    fn wrong_suspects_do_no_harm() {
        let (swept, _) = swept(100, |set| {
            if set.contains(&42) {
                harmed("triple fault", &[7, 8, 9, 5000])
            } else {
                well(set)
            }
        });
        assert_eq!(names(&swept), [(FindingKind::Harmful, vec![42])]);
        assert_eq!(swept.tally.probed, 99);
    }

    #[test]
    fn functions_that_fail_together_only_are_named_together() {
        for together in [vec![3, 77], vec![5, 6, 90]] {
            let (swept, _) = swept(100, |set| {
                if together.iter().all(|bad| set.contains(bad)) {
                    harmed("triple fault", &[])
                } else {
                    well(set)
                }
            });
            assert_eq!(
                names(&swept),
                [(FindingKind::HarmfulTogether, together.clone())]
            );
            assert_eq!(swept.tally.probed, 100 - together.len() as u64);
        }
    }

    #[test]
    fn failure_by_number_of_functions_names_the_smallest_failing_set() {
        let (swept, _) = swept(64, |set| {
            if set.len() > 50 {
                harmed("out of memory", &[])
            } else {
                well(set)
            }
        });
        let kinds: Vec<FindingKind> = swept.culprits.iter().map(|found| found.kind).collect();
        assert_eq!(kinds, [FindingKind::HarmfulAtTimes; 4]);
        assert!(
            swept
                .culprits
                .iter()
                .any(|found| found.functions.len() == 51)
        );
    }

    #[test]
    fn failure_that_does_not_repeat_is_reported_as_such() {
        let mut boots = 0;
        let (swept, _) = swept(100, |set| {
            boots += 1;
            if boots == 1 {
                harmed("by chance", &[])
            } else {
                well(set)
            }
        });
        let [found] = &swept.culprits[..] else {
            panic!("{swept:?}");
        };
        assert_eq!(found.kind, FindingKind::HarmfulAtTimes);
        assert_eq!(found.functions.len(), 100);
        assert_eq!(swept.tally.probed, 99);
    }

    #[test]
    fn guest_that_fails_at_random_does_not_keep_the_search_for_ever() {
        let mut state = 1_u32;
        let (swept, boots) = swept(1000, |set| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 30 == 0 {
                harmed("host", &[])
            } else {
                well(set)
            }
        });
        let judged: u64 = swept.tally.probed
            + swept
                .culprits
                .iter()
                .map(|found| found.functions.len() as u64)
                .sum::<u64>();
        assert!(judged >= 1000, "{swept:?}");
        assert!(boots < 300, "{boots}");
    }

    #[test]
    fn slow_batch_is_halved_and_a_slow_function_is_named() {
        let (swept, _) = swept(64, |set| {
            if set.len() > 20 || set.contains(&9) {
                slow(false)
            } else {
                well(set)
            }
        });
        assert_eq!(names(&swept), [(FindingKind::TooSlow, vec![9])]);
        assert_eq!(swept.tally.probed, 63);
    }

    #[test]
    fn set_that_seems_to_hang_is_reported_if_its_halves_do_not() {
        let (swept, boots) = swept(64, |set| match set.len() {
            64 => slow(true),
            _ => well(set),
        });
        let expected = [(FindingKind::HarmfulAtTimes, (0..64).collect())];
        assert_eq!((names(&swept), boots), (expected.into(), 3));
        assert_eq!(swept.tally.probed, 64);
    }

    #[test]
    fn function_that_seems_to_hang_alone_is_harmful_and_its_sets_are_not_reported() {
        let (swept, _) = swept(64, |set| match set.contains(&9) {
            true => slow(true),
            false => well(set),
        });
        assert_eq!(names(&swept), [(FindingKind::Harmful, vec![9])]);
        assert_eq!(swept.tally.probed, 63);
    }

    #[test]
    fn tallies_add_up() {
        let (swept, boots) = swept(10, |set| {
            if set.len() > 5 {
                return slow(false);
            }
            Outcome::Well(Tally {
                disabled: 2,
                probed: set.len() as u64 - 1,
                refused: [("why".to_owned(), 1)].into(),
                hits: 10,
                exits: 2,
                missed: [("ring-full".to_owned(), 3)].into(),
                ..Tally::default()
            })
        });
        assert_eq!(boots, 3);
        let expected = Tally {
            disabled: 4,
            probed: 8,
            refused: [("why".to_owned(), 2)].into(),
            hits: 20,
            exits: 4,
            missed: [("ring-full".to_owned(), 6)].into(),
            ..Tally::default()
        };
        assert_eq!(swept.tally, expected);
    }
}
