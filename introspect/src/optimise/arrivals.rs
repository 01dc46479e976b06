//! Addresses where execution can arrive other than from the instruction before.

use std::ops::Range;

use address::Gva;

/// Possible branch targets, over-estimated: any other address is reached only from the instruction
/// in front of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// In order, each once.
    places: Vec<Gva>,
}

impl Arrivals {
    /// All of them, in order.
    pub(super) fn places(&self) -> &[Gva] {
        &self.places
    }

    /// The first of them behind `range.start` and before `range.end`: to arrive at the start is to arrive in front.
    pub(super) fn inside(&self, range: &Range<Gva>) -> Option<Gva> {
        let first = self.places.partition_point(|place| *place <= range.start);
        self.places
            .get(first)
            .copied()
            .filter(|place| *place < range.end)
    }
}

impl FromIterator<Gva> for Arrivals {
    fn from_iter<I: IntoIterator<Item = Gva>>(places: I) -> Self {
        let mut places: Vec<Gva> = places.into_iter().collect();
        places.sort_unstable();
        places.dedup();
        places.shrink_to_fit();
        Self { places }
    }
}
