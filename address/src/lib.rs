//! Separate types for guest-virtual and guest-physical addresses, so that the two cannot be mixed up.

#![forbid(unsafe_code)]

use std::fmt;

/// The bytes of a page, the smallest that the processor maps.
pub const PAGE_BYTES: u64 = 1 << 12;
/// [`PAGE_BYTES`] as the length of a slice.
pub const PAGE_LEN: usize = 1 << 12;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The address `bytes` further on; wraps, as the hardware does.
            #[must_use]
            pub const fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// The address `bytes` before; wraps, as the hardware does.
            #[must_use]
            pub const fn wrapping_sub(self, bytes: u64) -> Self {
                Self(self.0.wrapping_sub(bytes))
            }

            /// The address `bytes` further on, or `None` past the end of the address space.
            #[must_use]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Bytes from `base` to the address, or `None` if the address lies below `base`.
            #[must_use]
            pub const fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }

            /// The start of the address's 4 KiB page.
            #[must_use]
            pub const fn page(self) -> Self {
                Self(self.0 & !0xfff)
            }

            /// The offset within the 4 KiB page, 0..4096.
            #[must_use]
            pub const fn page_offset(self) -> u64 {
                self.0 & 0xfff
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address! {
    /// A guest-physical address.
    Gpa
}

address! {
    /// A guest-virtual (linear) address.
    Gva
}
