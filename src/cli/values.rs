//! Parsers of arguments' values.

use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use manifest::Word;

use crate::config::Console;

/// One of several words.
pub(super) fn choice<W: Word + Send + Sync>() -> impl TypedValueParser<Value = W> {
    let values = W::ALL
        .iter()
        .map(|choice| PossibleValue::new(choice.word()).help(choice.about()));
    PossibleValuesParser::new(values)
        .try_map(|word| W::from_word(&word).ok_or("not one of the words"))
}

pub(super) fn cpus() -> impl TypedValueParser<Value = u8> {
    clap::value_parser!(u8).range(1..=i64::from(vmm::boot::MAX_VCPUS))
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a clap value parser")]
pub(super) fn parse_console(text: &str) -> Result<Console, std::convert::Infallible> {
    Ok(Console::from_text(text, Path::new("")))
}
