//! The number of probes of a run, which has a maximum.

use manifest::ProbeSpec;

use super::{ResolveError, ResolveProblem, WatchProblem};

/// The maximum number of probes at once, each match of a pattern counted: every function of a stock kernel, five times.
pub(crate) const PROBES_MAX: usize = 1 << 18;

/// The most words of all watchpoints, enabled or not: an instruction for the hardware costs time for each, with the vCPUs paused.
pub(crate) const WORDS_MAX: usize = 1 << 14;

/// A number of probes, each match of a pattern counted, and of the words of their watched data.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeNumber {
    probes: usize,
    words: usize,
}

impl ProbeNumber {
    /// Begins with the probes that are there, and the words of their watched data.
    pub(crate) const fn new(probes: usize, words: usize) -> Self {
        Self { probes, words }
    }

    /// Adds the probes of `spec`.
    ///
    /// # Errors
    ///
    /// If the probes exceed the maximum of an engine; then none is added.
    pub fn add(&mut self, spec: &ProbeSpec, probes: usize) -> Result<(), ResolveError> {
        let sum = self.probes.saturating_add(probes);
        if sum > PROBES_MAX {
            return Err(ResolveError {
                spec: spec.to_string(),
                problem: ResolveProblem::TooManyProbes { most: PROBES_MAX },
            });
        }
        self.probes = sum;
        Ok(())
    }

    /// Adds the words of the data that `spec` watches.
    ///
    /// # Errors
    ///
    /// If the words exceed the maximum of an engine; then none is added.
    pub fn add_words(&mut self, spec: &ProbeSpec, words: usize) -> Result<(), ResolveError> {
        let sum = self.words.saturating_add(words);
        if sum > WORDS_MAX {
            return Err(ResolveError {
                spec: spec.to_string(),
                problem: WatchProblem::TooManyWords { most: WORDS_MAX }.into(),
            });
        }
        self.words = sum;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_added_up_to_the_maximum_and_a_refused_addition_does_not_count() {
        let spec = "kprobe:m:f*".parse().expect("a probe");
        let mut number = ProbeNumber::new(10, 0);
        number.add(&spec, PROBES_MAX - 20).expect("room");
        number.add(&spec, 11).expect_err("one too many");
        number.add(&spec, usize::MAX).expect_err("too many");
        number.add(&spec, 10).expect("the last");
        number.add(&spec, 1).expect_err("one too many");
        number.add(&spec, 0).expect("nothing");
    }
}
