//! Hashes of the program and of the guest. A sweep is continued by the same program, which has the engine in it, and with the same
//! probes and guest.

use sha2::{Digest, Sha256};

/// The number of bytes shown of a hash.
const BYTES: usize = 8;

/// The start of the SHA-256 of `parts`, each with its length.
pub(super) fn hash<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let digits = digest.iter().take(BYTES);
    digits.map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn hash_depends_on_the_parts_and_on_their_ends() {
        let known = hash([&b"ab"[..], b"c"]);
        assert_eq!(known, hash([&b"ab"[..], b"c"]));
        for other in [[&b"a"[..], b"bc"], [b"ab", b"d"], [b"c", b"ab"]] {
            assert_ne!(known, hash(other));
        }
    }
}
