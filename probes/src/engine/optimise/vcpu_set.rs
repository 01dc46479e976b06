//! A set of vCPUs, read and written without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const WORD_BITS: usize = 64;
/// The maximum number of vCPUs of a machine.
const MAX_VCPUS: usize = 256;

/// A set of vCPUs.
#[derive(Debug, Default)]
pub(crate) struct VcpuSet([AtomicU64; MAX_VCPUS / WORD_BITS]);

impl VcpuSet {
    pub(crate) fn insert(&self, vcpu: usize) {
        if let Some(word) = self.0.get(vcpu / WORD_BITS) {
            word.fetch_or(1 << (vcpu % WORD_BITS), Ordering::Relaxed);
        }
    }

    pub(crate) fn contains(&self, vcpu: usize) -> bool {
        let word = self.0.get(vcpu / WORD_BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (vcpu % WORD_BITS) & 1 != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}
