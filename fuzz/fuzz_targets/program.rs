//! Filters and aggregates: their texts, and counters corrupted by the guest.

#![cfg_attr(fuzzing, no_main)]

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::sync::atomic::AtomicU64;

use hyprobe_fuzz::fuzz_target;
use manifest::program::{Aggregate, Filter, Operand, ProgramError};

fuzz_target!(|text: &str| {
    let mut values = Values(1);
    for byte in text.bytes() {
        values.0 = values.0.rotate_left(7) ^ u64::from(byte);
    }
    if let Some(filter) = parsed::<Filter>(text) {
        let _ = filter.holds(&mut |_: Operand| values.next());
    }
    if let Some(aggregate) = parsed::<Aggregate>(text) {
        execute(&aggregate, &mut values);
    }
});

/// Parses a program; `None` if `text` is no program. The printed program must be the same program.
fn parsed<P>(text: &str) -> Option<P>
where
    P: FromStr<Err = ProgramError> + Display + Debug + PartialEq,
{
    match text.parse::<P>() {
        Ok(program) => {
            let printed = program.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&program), "{printed}");
            Some(program)
        }
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            let _ = (error.to_string(), error.help());
            None
        }
    }
}

fn execute(aggregate: &Aggregate, values: &mut Values) {
    let initial = aggregate.initial();
    assert_eq!(initial.len(), aggregate.words());
    let words: Vec<AtomicU64> = initial.iter().copied().map(AtomicU64::new).collect();
    const VALUES: u64 = 8;
    for _ in 0..VALUES {
        aggregate.add(&words, values.next());
    }
    let mut words: Vec<u64> = words.into_iter().map(AtomicU64::into_inner).collect();
    assert_eq!(aggregate.result(&words).count(), VALUES);
    aggregate.merge(&mut words, &initial);
    assert_eq!(aggregate.result(&words).count(), VALUES);
    words.iter_mut().for_each(|word| *word = values.next());
    let _ = aggregate.result(&words).to_string();
    let _ = aggregate.result(&words[..words.len() / 2]).to_string();
}

/// Large and small numbers, which depend only on the text.
struct Values(u64);

impl Values {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let [shift, ..] = self.0.to_be_bytes();
        self.0.rotate_left(32) >> (shift & 63)
    }
}
