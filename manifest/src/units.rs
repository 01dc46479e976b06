//! Parses sizes and times: `256M`, `60s`.

use std::time::Duration;

use thiserror::Error;

/// The reason why a text is not a size or a time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// The text does not begin with a number.
    #[error("`{text}` does not begin with a number; write {form}")]
    NoNumber {
        /// The text.
        text: String,
        /// The right form.
        form: &'static str,
    },
    /// A number without a unit.
    #[error("`{text}` has no unit; write {form}")]
    NoUnit {
        /// The text.
        text: String,
        /// The right form.
        form: &'static str,
    },
    /// An unknown unit.
    #[error("`{unit}` in `{text}` is no unit; write {form}")]
    UnknownUnit {
        /// The text.
        text: String,
        /// The text behind the number.
        unit: String,
        /// The right form.
        form: &'static str,
    },
    /// A number that does not fit 64 bits.
    #[error("`{text}` is too much")]
    TooMuch {
        /// The text.
        text: String,
    },
    /// Zero is not a valid size or time.
    #[error("`{text}` is nothing; write {form}")]
    Zero {
        /// The text.
        text: String,
        /// The right form.
        form: &'static str,
    },
}

const SIZE_FORM: &str = "a number and K, M or G, like 256M";
const TIME_FORM: &str = "a number and ms, s, m or h, like 60s";

/// Bytes: `64K`, `256M`, `1G`, in powers of 1024; `MiB` and `MB` mean the same as `M`.
///
/// # Errors
///
/// If the text is not a size, or is zero.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text, SIZE_FORM)?;
    let shift = match unit
        .to_ascii_uppercase()
        .trim_end_matches('B')
        .trim_end_matches('I')
    {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(unknown(text, unit, SIZE_FORM)),
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| UnitError::TooMuch {
            text: text.to_owned(),
        })
}

/// A time: `500ms`, `60s`, `2m`, `1h`.
///
/// # Errors
///
/// If the text is not a time, or is zero.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text, TIME_FORM)?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(unknown(text, unit, TIME_FORM)),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .ok_or_else(|| UnitError::TooMuch {
            text: text.to_owned(),
        })
}

/// Splits a text into its number and the unit behind it.
fn split<'t>(text: &'t str, form: &'static str) -> Result<(u64, &'t str), UnitError> {
    let text = text.trim();
    let end = text
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let owned = || text.to_owned();
    match (digits.parse::<u64>(), unit.trim_start()) {
        _ if digits.is_empty() => Err(UnitError::NoNumber {
            text: owned(),
            form,
        }),
        // The text has only digits, so an error means too many digits.
        (Err(_), _) => Err(UnitError::TooMuch { text: owned() }),
        (Ok(0), _) => Err(UnitError::Zero {
            text: owned(),
            form,
        }),
        (Ok(_), "") => Err(UnitError::NoUnit {
            text: owned(),
            form,
        }),
        (Ok(number), unit) => Ok((number, unit)),
    }
}

fn unknown(text: &str, unit: &str, form: &'static str) -> UnitError {
    UnitError::UnknownUnit {
        text: text.to_owned(),
        unit: unit.to_owned(),
        form,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("64K", 64 << 10),
            ("256M", 256 << 20),
            ("256m", 256 << 20),
            ("256 MiB", 256 << 20),
            ("256MB", 256 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("60s", 60_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn refusals_name_the_correct_form() {
        for (text, message) in [
            (
                "",
                "`` does not begin with a number; write a number and K, M or G, like 256M",
            ),
            (
                "M",
                "`M` does not begin with a number; write a number and K, M or G, like 256M",
            ),
            (
                "-1M",
                "`-1M` does not begin with a number; write a number and K, M or G, like 256M",
            ),
            (
                "256",
                "`256` has no unit; write a number and K, M or G, like 256M",
            ),
            (
                "256X",
                "`X` in `256X` is no unit; write a number and K, M or G, like 256M",
            ),
            (
                "1.5G",
                "`.5G` in `1.5G` is no unit; write a number and K, M or G, like 256M",
            ),
            (
                "0M",
                "`0M` is nothing; write a number and K, M or G, like 256M",
            ),
            (
                "99999999999999999999M",
                "`99999999999999999999M` is too much",
            ),
            (
                "18446744073709551615G",
                "`18446744073709551615G` is too much",
            ),
        ] {
            assert_eq!(parse_size(text).expect_err(text).to_string(), message);
        }
        assert_eq!(
            parse_duration("60").expect_err("no unit").to_string(),
            "`60` has no unit; write a number and ms, s, m or h, like 60s"
        );
        assert_eq!(parse_duration("60M").ok(), None);
    }
}
