//! Types by name.

use std::hash::{BuildHasher, RandomState};

use super::TypeId;

/// The sorted hashes of all names, each with the type. The names stay in the blob: the caller of
/// `candidates` compares them there.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    /// Seeded at random, so that no guest can make all names collide.
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

    /// The types with the hash of `name`, in the order of their numbers.
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
