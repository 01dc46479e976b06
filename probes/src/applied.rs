//! The programs of probes, with their state between hits. Any vCPU may use them at any time; no call waits.

use std::sync::atomic::{AtomicU64, Ordering};

use manifest::program::{Aggregate, AggregateResult, Filter};

/// An aggregate and its result.
#[derive(Debug)]
pub(crate) struct Aggregated {
    pub(crate) aggregate: Aggregate,
    words: Box<[AtomicU64]>,
}

impl From<Aggregate> for Aggregated {
    fn from(aggregate: Aggregate) -> Self {
        let words = aggregate.initial().into_iter();
        Self {
            aggregate,
            words: words.map(AtomicU64::new).collect(),
        }
    }
}

impl Aggregated {
    /// The same aggregate, without values.
    pub(crate) fn anew(&self) -> Self {
        Self::from(self.aggregate)
    }

    pub(crate) fn add(&self, value: u64) {
        self.aggregate.add(&self.words, value);
    }

    fn read(&self) -> Vec<u64> {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        words.collect()
    }

    /// Adds `others`, the values in other words, to the result. No vCPU runs.
    pub(crate) fn merge(&self, others: &[u64]) {
        let mut words = self.read();
        self.aggregate.merge(&mut words, others);
        for (word, merged) in self.words.iter().zip(words) {
            word.store(merged, Ordering::Relaxed);
        }
    }

    /// The result, with the values in `others` added.
    pub(crate) fn result(&self, others: Option<&[u64]>) -> AggregateResult {
        let mut words = self.read();
        if let Some(others) = others {
            self.aggregate.merge(&mut words, others);
        }
        self.aggregate.result(&words)
    }
}

/// At least the maximum number of vCPUs of a machine.
const MAX_VCPUS: usize = 256;

/// A filter, and its last decision on each vCPU: after a rejected execution, the handlers behind the instruction are not called either.
#[derive(Debug)]
pub(crate) struct Filtered {
    pub(crate) filter: Filter,
    turned_away: [AtomicU64; MAX_VCPUS / 64],
}

impl From<Filter> for Filtered {
    fn from(filter: Filter) -> Self {
        Self {
            filter,
            turned_away: [const { AtomicU64::new(0) }; MAX_VCPUS / 64],
        }
    }
}

impl Filtered {
    fn word(&self, vcpu: usize) -> &AtomicU64 {
        &self.turned_away[vcpu / 64 % self.turned_away.len()]
    }

    /// Notes the decision for a hit. Called on the thread of `vcpu`.
    pub(crate) fn decided(&self, vcpu: usize, accepts_hit: bool) {
        let bit = 1 << (vcpu % 64);
        if accepts_hit {
            self.word(vcpu).fetch_and(!bit, Ordering::Relaxed);
        } else {
            self.word(vcpu).fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether the filter rejected the last execution on `vcpu`. Called on the thread of `vcpu`.
    pub(crate) fn has_turned_away(&self, vcpu: usize) -> bool {
        self.word(vcpu).load(Ordering::Relaxed) & 1 << (vcpu % 64) != 0
    }
}
