//! A survey as bytes, for a process that uses the survey of another process.
//!
//! The bytes are little-endian words of 64 bits: for each list its length, and then its entries. The layout belongs to one version of
//! hyprobe: writer and reader are the same executable.

use std::ops::Range;

use address::Gva;
use thiserror::Error;

use super::exceptions::Exceptions;
use super::survey::Survey;
use super::unfit::Unfit;

const WORD_BYTES: usize = 8;

/// Bytes that are no survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the bytes are no survey: damage at byte {at}")]
pub struct DamagedSurvey {
    /// The offset of the first word that does not fit.
    pub at: usize,
}

impl Survey {
    /// The survey as bytes: some megabytes for a stock kernel.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut list = |words: Vec<u64>| {
            bytes.extend_from_slice(&(words.len() as u64).to_le_bytes());
            bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
        };
        list(ranges(self.functions.iter()));
        list(words(self.arrivals.places()));
        let exceptions = self.exceptions.iter();
        list(
            exceptions
                .clone()
                .flat_map(|table| words(&table.instructions))
                .collect(),
        );
        list(exceptions.flat_map(|table| words(&table.fixups)).collect());
        list(vec![u64::from(self.exceptions.is_some())]);
        list(words(&self.undecodable));
        list(words(&self.counted_from));
        list(ranges(self.unfit.iter().map(|(range, _)| range)));
        list(self.unfit.iter().map(|(_, why)| number(*why)).collect());
        bytes
    }

    /// The survey in `bytes`, which [`to_bytes`](Self::to_bytes) has made.
    ///
    /// # Errors
    ///
    /// If the bytes have another form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DamagedSurvey> {
        let mut lists = Lists { bytes, at: 0 };
        let functions = lists.ranges()?;
        let arrivals = lists.addresses()?.into_iter().collect();
        let exceptions = Exceptions {
            instructions: lists.addresses()?,
            fixups: lists.addresses()?,
        };
        let has_exceptions = lists.words()?.eq([1]);
        let (undecodable, counted_from) = (lists.addresses()?, lists.addresses()?);
        let unfit_ranges = lists.ranges()?;
        let whys: Option<Vec<Unfit>> = lists.words()?.map(unfit).collect();
        let whys = whys.filter(|whys| whys.len() == unfit_ranges.len());
        let whys = whys.ok_or(lists.damage())?;
        if lists.at != bytes.len() {
            return Err(lists.damage());
        }
        Ok(Self {
            functions,
            arrivals,
            exceptions: has_exceptions.then_some(exceptions),
            undecodable,
            counted_from,
            unfit: unfit_ranges.into_iter().zip(whys).collect(),
        })
    }
}

fn words(addresses: &[Gva]) -> Vec<u64> {
    addresses.iter().map(|address| address.0).collect()
}

fn ranges<'r>(ranges: impl Iterator<Item = &'r Range<Gva>>) -> Vec<u64> {
    ranges
        .flat_map(|range| [range.start.0, range.end.0])
        .collect()
}

const fn number(why: Unfit) -> u64 {
    match why {
        Unfit::Entry => 1,
        Unfit::Start => 2,
        Unfit::Template => 3,
        Unfit::Thunk => 4,
    }
}

/// The reason with the [`number`].
const fn unfit(number: u64) -> Option<Unfit> {
    Some(match number {
        1 => Unfit::Entry,
        2 => Unfit::Start,
        3 => Unfit::Template,
        4 => Unfit::Thunk,
        _ => return None,
    })
}

/// The lists that are not read yet.
struct Lists<'b> {
    bytes: &'b [u8],
    /// The offset of the next list.
    at: usize,
}

impl<'b> Lists<'b> {
    const fn damage(&self) -> DamagedSurvey {
        DamagedSurvey { at: self.at }
    }

    fn words(&mut self) -> Result<impl Iterator<Item = u64> + use<'b>, DamagedSurvey> {
        let damage = self.damage();
        let left = self.bytes.get(self.at..).ok_or(damage)?;
        let (len, left) = left.split_first_chunk().ok_or(damage)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| damage)?;
        let len = len.checked_mul(WORD_BYTES).ok_or(damage)?;
        let list = left.get(..len).ok_or(damage)?;
        self.at += WORD_BYTES + len;
        let (words, _) = list.as_chunks();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    fn addresses(&mut self) -> Result<Vec<Gva>, DamagedSurvey> {
        Ok(self.words()?.map(Gva).collect())
    }

    fn ranges(&mut self) -> Result<Vec<Range<Gva>>, DamagedSurvey> {
        let damage = self.damage();
        let addresses = self.addresses()?;
        match addresses.as_chunks() {
            (pairs, []) => Ok(pairs.iter().map(|[start, end]| *start..*end).collect()),
            _ => Err(damage),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn survey() -> Survey {
        let range = |start, end| Gva(start)..Gva(end);
        Survey {
            functions: vec![range(0x1000, 0x1010), range(0x1010, 0x1040)],
            arrivals: [Gva(0x1004), Gva(0x1020)].into_iter().collect(),
            exceptions: Some(Exceptions {
                instructions: vec![Gva(0x1008)],
                fixups: vec![Gva(0x1030)],
            }),
            undecodable: vec![Gva(0x1038)],
            counted_from: vec![Gva(0x1010)],
            unfit: vec![
                (range(0x1000, 0x1010), Unfit::Thunk),
                (range(0x1010, 0x1014), Unfit::Entry),
                (range(0x1014, 0x1018), Unfit::Start),
                (range(0x1018, 0x101c), Unfit::Template),
            ],
        }
    }

    #[test]
    fn survey_is_the_same_behind_its_bytes() {
        for survey in [survey(), Survey::default()] {
            let again = Survey::from_bytes(&survey.to_bytes()).expect("a survey");
            assert_eq!(format!("{again:?}"), format!("{survey:?}"));
        }
    }

    #[test]
    fn cut_or_longer_bytes_are_no_survey() {
        let bytes = survey().to_bytes();
        for len in 0..bytes.len() {
            assert!(Survey::from_bytes(&bytes[..len]).is_err(), "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        let at = bytes.len();
        assert_eq!(
            Survey::from_bytes(&longer).expect_err("longer"),
            DamagedSurvey { at }
        );
    }

    proptest! {
        #[test]
        fn damaged_bytes_neither_panic_nor_take_memory(
            at in any::<prop::sample::Index>(), byte in any::<u8>(), bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut damaged = survey().to_bytes();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            for bytes in [damaged, bytes] {
                if let Ok(survey) = Survey::from_bytes(&bytes) {
                    prop_assert!(survey.to_bytes().len() <= bytes.len());
                }
            }
        }
    }
}
