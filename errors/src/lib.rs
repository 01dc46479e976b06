//! Error chains as text.

use std::error::Error;
use std::iter::successors;

/// The causes of `error`, nearest first.
pub fn causes(error: &dyn Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    successors(error.source(), |&cause| cause.source())
}

/// The text of `error`, then the text of each cause, in one line.
#[must_use]
pub fn chain<E: Error>(error: E) -> String {
    let mut text = error.to_string();
    for cause in causes(&error) {
        text.push_str(": ");
        text.push_str(&cause.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_the_error_and_then_each_cause() {
        let outer = Outer("x".parse::<u8>().expect_err("no number"));
        let text = "outer: invalid digit found in string";
        assert_eq!((chain(&outer).as_str(), causes(&outer).count()), (text, 1));
    }

    #[derive(Debug)]
    struct Outer(std::num::ParseIntError);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
}
