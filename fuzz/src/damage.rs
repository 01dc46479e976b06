//! Changes to memory.

use arbitrary::Arbitrary;

/// A hostile guest's change to memory. Offsets are taken modulo the memory's size.
#[derive(Arbitrary, Clone, Debug)]
pub enum Damage {
    /// Stores one byte.
    Byte {
        /// The offset.
        at: u32,
        /// The byte.
        value: u8,
    },
    /// Stores 32 bits.
    Word {
        /// The offset.
        at: u32,
        /// The number.
        value: u32,
    },
    /// Stores 64 bits.
    Long {
        /// The offset.
        at: u32,
        /// The number.
        value: u64,
    },
    /// Stores the address of another offset.
    Pointer {
        /// The offset.
        at: u32,
        /// The other offset.
        to: u32,
    },
    /// Copies bytes.
    Copy {
        /// The source.
        from: u32,
        /// The destination.
        to: u32,
        /// The number of bytes.
        len: u8,
    },
    /// Fills bytes.
    Fill {
        /// The first byte.
        at: u32,
        /// The number of bytes.
        len: u16,
        /// The value of each byte.
        value: u8,
    },
}

impl Damage {
    /// Changes `memory`. The first byte has the address `base`.
    pub fn apply(&self, memory: &mut [u8], base: u64) {
        let Some(last) = memory.len().checked_sub(1) else {
            return;
        };
        let place = |at: u32| usize::try_from(at).unwrap_or(0) % (last + 1);
        match *self {
            Self::Byte { at, value } => put(memory, place(at), &[value]),
            Self::Word { at, value } => put(memory, place(at), &value.to_le_bytes()),
            Self::Long { at, value } => put(memory, place(at), &value.to_le_bytes()),
            Self::Pointer { at, to } => {
                let address = base.wrapping_add(place(to) as u64);
                put(memory, place(at), &address.to_le_bytes());
            }
            Self::Copy { from, to, len } => {
                let source: Vec<u8> = memory[place(from)..]
                    .iter()
                    .copied()
                    .take(usize::from(len))
                    .collect();
                put(memory, place(to), &source);
            }
            Self::Fill { at, len, value } => {
                put(memory, place(at), &vec![value; usize::from(len)]);
            }
        }
    }
}

/// Stores `bytes`, up to the end of `memory`.
fn put(memory: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, byte) in memory[at..].iter_mut().zip(bytes) {
        *place = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_stays_within_memory() {
        let all = [
            Damage::Byte { at: 9, value: 1 },
            Damage::Word {
                at: 7,
                value: u32::MAX,
            },
            Damage::Pointer { at: 0, to: 2 },
            Damage::Copy {
                from: 0,
                to: 6,
                len: 255,
            },
            Damage::Fill {
                at: 3,
                len: u16::MAX,
                value: 5,
            },
        ];
        let mut memory = [0; 8];
        all.iter()
            .for_each(|damage| damage.apply(&mut memory, 0x1000));
        assert_eq!(memory, [2, 0x10, 0, 5, 5, 5, 5, 5]);
        all.iter().for_each(|damage| damage.apply(&mut [], 0x1000));
    }
}
