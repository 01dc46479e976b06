//! Types by name.

use std::hash::{BuildHasher, RandomState};

use super::TypeId;

/// The hashes of all names in order, each with its type. The names themselves stay in the blob: who
/// looks one up compares it there.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    /// Seeded at random, so that no guest can make all its names collide.
    hasher: RandomState,
    entries: Vec<(u32, TypeId)>,
}

impl NameIndex {
    pub(super) fn build<'n>(names: impl Iterator<Item = (TypeId, &'n str)>) -> Self {
        let hasher = RandomState::new();
        let mut entries: Vec<(u32, TypeId)> =
            names.map(|(ty, name)| (hash(&hasher, name), ty)).collect();
        entries.sort_unstable();
        Self { hasher, entries }
    }

    /// The types that may be called `name`, in the order of their numbers.
    pub(super) fn candidates(&self, name: &str) -> impl Iterator<Item = TypeId> + '_ {
        let wanted = hash(&self.hasher, name);
        let start = self.entries.partition_point(|&(hash, _)| hash < wanted);
        self.entries[start..]
            .iter()
            .take_while(move |&&(hash, _)| hash == wanted)
            .map(|&(_, ty)| ty)
    }
}

/// Half of the hash: enough for some hundred thousand names.
fn hash(hasher: &RandomState, name: &str) -> u32 {
    let [a, b, c, d, ..] = hasher.hash_one(name).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
