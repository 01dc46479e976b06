//! An error as a line.

/// The error and its causes.
#[must_use]
pub fn chain<E: std::error::Error>(error: E) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
