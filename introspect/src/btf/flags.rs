//! Enums of flags.
//!
//! BTF does not say which enums are flags. An enum is one of flags if
//!
//! - at least two enumerators are a single bit, one of them 4 or higher,
//! - all other enumerators are made of these bits, and
//! - none is 3: an enum with 1, 2, 3 and 4 counts something, and combined names would be made up.

/// The most enumerators that are looked at.
const MAX_ENUMERATORS: usize = 512;
/// The most bytes of combined names. A name of a hostile kernel is as long as a symbol, and a list has thousands of values.
const MAX_TEXT_BYTES: usize = 512;
/// The least number that only flags skip 3 for.
const FIRST_FLAG_OF_FLAGS: u64 = 4;

/// Whether enumerators with these numbers are flags.
pub(crate) fn are_flags(numbers: impl Iterator<Item = i64> + Clone) -> bool {
    let numbers = numbers.map(i64::cast_unsigned);
    let single = numbers.clone().take(MAX_ENUMERATORS + 1);
    let single = single.filter(|number| number.is_power_of_two());
    let (count, all) = single.fold((0, 0), |(count, all), bit| (count + 1, all | bit));
    let mut rest = numbers.clone().skip(MAX_ENUMERATORS);
    count >= 2
        && all >= FIRST_FLAG_OF_FLAGS
        && rest.next().is_none()
        && numbers
            .take(MAX_ENUMERATORS)
            .all(|number| number & !all == 0 && number != 3)
}

/// The names of the single bits of `number`, and the bits without a name as a number: `READ|WRITE|0x40`. `None` if no bit has a name, or the names
/// are too long.
pub(crate) fn combined<'n>(
    flags: impl Iterator<Item = (&'n str, i64)>,
    number: i64,
) -> Option<String> {
    let mut rest = number.cast_unsigned();
    let mut text = String::new();
    for (name, flag) in flags {
        let flag = flag.cast_unsigned();
        if flag.is_power_of_two() && rest & flag != 0 {
            rest &= !flag;
            let bar = if text.is_empty() { "" } else { "|" };
            text.push_str(bar);
            text.push_str(name);
        }
    }
    if rest != 0 && !text.is_empty() {
        text.push_str(&format!("|{rest:#x}"));
    }
    (1..=MAX_TEXT_BYTES).contains(&text.len()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_enums_of_single_bits_are_flags() {
        let are = |numbers: &[i64]| are_flags(numbers.iter().copied());
        for flags in [
            &[0, 1, 2, 4, 6][..],
            &[1, 2, 4, 7],
            &[16, 32],
            &[1, i64::MIN],
        ] {
            assert!(are(flags), "{flags:?}");
        }
        for others in [
            &[0, 1][..],
            &[0, 1, 2],
            &[1, 2, 3, 4],
            &[1, 2, 4, 10],
            &[1, 4, -1],
            &[0, 4],
            &[],
        ] {
            assert!(!are(others), "{others:?}");
        }
        // Beyond the limit, an enumerator could be anything.
        let many = (0..=MAX_ENUMERATORS).map(|number| 1 << (number % 60));
        assert!(are_flags(many.clone().take(MAX_ENUMERATORS)));
        assert!(!are_flags(many));
    }

    #[test]
    fn bits_have_their_names_and_the_rest_is_a_number() {
        let combined = |number| combined([("NONE", 0), ("A", 1), ("C", 4)].into_iter(), number);
        assert_eq!(combined(5).as_deref(), Some("A|C"));
        assert_eq!(combined(0x45).as_deref(), Some("A|C|0x40"));
        assert_eq!(combined(0x42), None);
        assert_eq!(combined(0), None);
    }

    #[test]
    fn names_that_are_too_long_are_not_combined() {
        let long = "A".repeat(MAX_TEXT_BYTES);
        let named = |number| combined([(&*long, 1), ("B", 4)].into_iter(), number);
        assert_eq!(named(1), Some(long.clone()));
        assert_eq!(named(5), None);
    }
}
