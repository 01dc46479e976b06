//! The number of probes of a run, which has a maximum.

use manifest::ProbeSpec;

use super::{ResolveError, ResolveProblem};

/// The maximum number of probes at once, each match of a pattern counted: every function of a stock kernel, five times.
pub(crate) const PROBES_MAX: usize = 1 << 18;

/// A number of probes, each match of a pattern counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeNumber(usize);

impl ProbeNumber {
    /// Begins with the probes that are there.
    #[must_use]
    pub const fn new(present: usize) -> Self {
        Self(present)
    }

    /// Adds the probes of `spec`.
    ///
    /// # Errors
    ///
    /// If the probes exceed the maximum of an engine; then none is added.
    pub fn add(&mut self, spec: &ProbeSpec, probes: usize) -> Result<(), ResolveError> {
        let sum = self.0.saturating_add(probes);
        if sum > PROBES_MAX {
            return Err(ResolveError {
                spec: spec.to_string(),
                problem: ResolveProblem::TooManyProbes { most: PROBES_MAX },
            });
        }
        self.0 = sum;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_added_up_to_the_maximum_and_a_refused_addition_does_not_count() {
        let spec = "kprobe:m:f*".parse().expect("a probe");
        let mut number = ProbeNumber::new(10);
        number.add(&spec, PROBES_MAX - 20).expect("room");
        number.add(&spec, 11).expect_err("one too many");
        number.add(&spec, usize::MAX).expect_err("too many");
        number.add(&spec, 10).expect("the last");
        number.add(&spec, 1).expect_err("one too many");
        number.add(&spec, 0).expect("nothing");
    }
}
