//! Maps from addresses, for the look-ups of vCPUs at every hit.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use rpds::HashTrieMapSync;

/// A map from guest-virtual or guest-physical addresses. A changed copy shares the unchanged parts.
pub type AddressMap<V> = HashTrieMapSync<u64, V, AddressHash>;

/// Hashes addresses in a few instructions. The guest chooses some of the addresses (the return addresses of its calls), so the hash has a
/// key unknown to the guest. Without a key, the guest could make all addresses collide.
#[derive(Clone, Debug)]
pub struct AddressHash {
    key: u64,
}

impl Default for AddressHash {
    fn default() -> Self {
        static KEY: OnceLock<u64> = OnceLock::new();
        let key = *KEY.get_or_init(|| RandomState::new().hash_one(0_u8));
        Self { key }
    }
}

impl BuildHasher for AddressHash {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(self.key)
    }
}

/// The hasher of [`AddressHash`].
#[derive(Debug)]
pub struct AddressHasher(u64);

/// The fractional digits of the golden ratio: odd, and with no pattern.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    /// Mixes both halves of the product, so that each bit of the result depends on the whole address.
    fn write_u64(&mut self, address: u64) {
        let product = u128::from(self.0 ^ address) * u128::from(FACTOR);
        let (low, high) = (product & u128::from(u64::MAX), product >> u64::BITS);
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn few_hash_bits_distinguish_neighbours_and_pages() {
        for key in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let hash = AddressHash { key };
            for step in [1, 8, 16, 0x1000, 0x20_0000] {
                let addresses = (0..256).map(|n| 0xffff_ffff_8100_0000_u64 + n * step);
                let low: BTreeSet<_> = addresses.map(|at| hash.hash_one(at) & 0xfff).collect();
                // About as many as for random addresses: 248 are usual.
                assert!(low.len() > 200, "step {step:#x}: {}", low.len());
            }
        }
    }
}
