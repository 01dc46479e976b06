//! Reads values from a table, and notes problems with their positions.

use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Listed, Problem};
use crate::choices::Word;
use crate::suggest::did_you_mean;
use crate::units::UnitError;

/// A table of the manifest. The reader notes the problem of a wrong value, and treats the value as absent.
#[derive(Debug)]
pub(super) struct Reader<'t, 'i, 'p> {
    table: &'t DeTable<'i>,
    /// The table's name in messages.
    name: &'static str,
    problems: &'p mut Vec<Problem>,
}

impl<'t, 'i, 'p> Reader<'t, 'i, 'p> {
    /// A reader of `table`; `known` lists all valid keys.
    pub(super) fn new(
        name: &'static str,
        table: &'t DeTable<'i>,
        known: &'static [&'static str],
        problems: &'p mut Vec<Problem>,
    ) -> Self {
        for key in table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
        {
            let word = key.get_ref().as_ref();
            let there_are = format!("there are {}", Listed(known, "and"));
            problems.push(Problem::UnknownKey {
                table: name,
                key: word.to_owned(),
                span: key.span().into(),
                help: Some(match did_you_mean(word, known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`? {there_are}"),
                    None => there_are,
                }),
            });
        }
        Self {
            table,
            name,
            problems,
        }
    }

    /// Notes a problem.
    pub(super) fn note(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// The value of `key`.
    pub(super) fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.table.get(key)
    }

    /// A string that is not empty, and the position of its value.
    pub(super) fn string(&mut self, key: &'static str) -> Option<(&'t str, Range<usize>)> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) if text.is_empty() => {
                self.note(Problem::Empty {
                    key,
                    span: value.span().into(),
                });
                None
            }
            DeValue::String(text) => Some((text.as_ref(), value.span())),
            _ => self.wrong_type(key, "a string", None, value),
        }
    }

    /// A string that may be empty.
    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(text.as_ref().to_owned()),
            _ => self.wrong_type(key, "a string", None, value),
        }
    }

    /// A size or a time.
    pub(super) fn unit<T>(
        &mut self,
        key: &'static str,
        example: &'static str,
        parse: fn(&str) -> Result<T, UnitError>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let DeValue::String(text) = value.get_ref() else {
            let help = format!("write it with a unit and in quotes: {key} = \"{example}\"");
            return self.wrong_type(key, "a string", Some(help), value);
        };
        match parse(text) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.note(Problem::Unit {
                    key,
                    error,
                    span: value.span().into(),
                });
                None
            }
        }
    }

    /// A word from several choices.
    pub(super) fn choice<W: Word>(&mut self, key: &'static str) -> Option<W> {
        let (word, span) = self.string(key)?;
        let choice = W::from_word(word);
        if choice.is_none() {
            let words: Vec<_> = W::ALL.iter().map(|choice| choice.word()).collect();
            let can_be = format!("it can be {}", Listed(&words, "or"));
            self.note(Problem::NoChoice {
                key,
                word: word.to_owned(),
                span: span.into(),
                help: Some(match did_you_mean(word, words.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`? {can_be}"),
                    None => can_be,
                }),
            });
        }
        choice
    }

    /// A table.
    pub(super) fn table(&mut self, key: &'static str) -> Option<&'t DeTable<'i>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                let help = format!("write [{key}], or {key} = {{ … }}");
                self.wrong_type(key, "a table", Some(help), value)
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.wrong_type(key, "true or false", None, value),
        }
    }

    /// A small number.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<u16>) -> Option<u16> {
        let value = self.value(key)?;
        let DeValue::Integer(number) = value.get_ref() else {
            return self.wrong_type(key, "an integer", None, value);
        };
        let parsed = i64::from_str_radix(number.as_str(), number.radix()).ok();
        let fitting = parsed.and_then(|number| u16::try_from(number).ok());
        let fitting = fitting.filter(|number| range.contains(number));
        if fitting.is_none() {
            self.note(Problem::OutOfRange {
                key,
                number: number.as_str().to_owned(),
                from: i64::from(*range.start()),
                to: i64::from(*range.end()),
                span: value.span().into(),
            });
        }
        fitting
    }

    /// A number of any size.
    pub(super) fn integer(&mut self, key: &'static str) -> Option<(i64, Range<usize>)> {
        let value = self.value(key)?;
        let number = self.parse_integer(key, value)?;
        Some((number, value.span()))
    }

    /// An array of numbers.
    pub(super) fn integers(&mut self, key: &'static str) -> Option<Vec<i64>> {
        let value = self.value(key)?;
        let DeValue::Array(elements) = value.get_ref() else {
            return self.wrong_type(key, "an array of integers", None, value);
        };
        let numbers = elements.iter();
        numbers.map(|it| self.parse_integer(key, it)).collect()
    }

    fn parse_integer(&mut self, key: &'static str, value: &Spanned<DeValue<'_>>) -> Option<i64> {
        let DeValue::Integer(number) = value.get_ref() else {
            return self.wrong_type(key, "an integer", None, value);
        };
        let parsed = i64::from_str_radix(number.as_str(), number.radix());
        // Addresses and registers are written without a sign.
        let unsigned = || u64::from_str_radix(number.as_str(), number.radix());
        let parsed = parsed.or_else(|_| unsigned().map(u64::cast_signed)).ok();
        if parsed.is_none() {
            self.note(Problem::OutOfRange {
                key,
                number: number.as_str().to_owned(),
                from: i64::MIN,
                to: i64::MAX,
                span: value.span().into(),
            });
        }
        parsed
    }

    /// A number of 0 or more.
    pub(super) fn amount(&mut self, key: &'static str) -> Option<u64> {
        let (number, span) = self.integer(key)?;
        let amount = u64::try_from(number).ok();
        if amount.is_none() {
            self.note(Problem::OutOfRange {
                key,
                number: number.to_string(),
                from: 0,
                to: i64::MAX,
                span: span.into(),
            });
        }
        amount
    }

    /// The strings of an array, each with its position.
    pub(super) fn strings(&mut self, key: &'static str) -> Option<Vec<(&'t str, Range<usize>)>> {
        const EXPECTED: &str = "an array of strings";
        let value = self.value(key)?;
        let DeValue::Array(elements) = value.get_ref() else {
            return self.wrong_type(key, EXPECTED, None, value);
        };
        let mut strings = Vec::new();
        for element in elements {
            match element.get_ref() {
                DeValue::String(text) => strings.push((text.as_ref(), element.span())),
                _ => return self.wrong_type(key, EXPECTED, None, element),
            }
        }
        Some(strings)
    }

    /// The table's name in messages.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Notes a problem if the table has both keys.
    pub(super) fn exclude(&mut self, first: &'static str, second: &'static str) {
        if let (Some(one), Some(other)) = (self.value(first), self.value(second)) {
            let (span, other) = (one.span().into(), other.span().into());
            self.note(Problem::Both {
                first,
                second,
                span,
                other,
            });
        }
    }

    /// Notes a problem if `key` is missing from the table, which is at `span`.
    pub(super) fn require(&mut self, key: &'static str, span: Range<usize>) {
        if self.value(key).is_none() {
            self.note(Problem::Missing {
                table: self.name,
                key,
                span: span.into(),
            });
        }
    }

    /// Notes a `value` of the wrong type.
    pub(super) fn wrong_type<T>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        help: Option<String>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<T> {
        let found = type_name(value.get_ref());
        self.note(Problem::WrongType {
            key,
            expected,
            found,
            span: value.span().into(),
            help,
        });
        None
    }
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
