//! The cases of a launch, known before the start.

use super::{Launch, LaunchError, Program, stock};
use crate::selection::select;
use crate::{busy, contract, ground, overhead};

/// The names of the cases to run, in the order of their lines. A sweep has none.
///
/// # Errors
///
/// If a part of `--only` is in no case's name.
pub(super) fn selected(launch: &Launch<'_>) -> Result<Vec<String>, LaunchError> {
    let stock_cpus = stock::cpus(launch.backend);
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let names = match launch.program {
        Program::Contract { stock } => contract::line_names(stock.then_some(stock_cpus)),
        Program::Bench { .. } => owned(&overhead::names()),
        Program::Busy { .. } => owned(&busy::NAMES),
        Program::Ground { .. } => owned(&ground::names()),
        Program::Sweep { .. } => return Ok(Vec::new()),
    };
    let selected = select(only(launch.arguments).unwrap_or_default(), names);
    selected.map_err(|error| {
        let is_left_out = launch.program == Program::Contract { stock: false }
            && select(&error.part, contract::line_names(Some(stock_cpus))).is_ok();
        match is_left_out {
            true => LaunchError::StockCase { part: error.part },
            false => LaunchError::Selection(error),
        }
    })
}

/// The value of `--only` among the program's arguments.
pub(super) fn only(arguments: &[String]) -> Option<&str> {
    let mut words = arguments.iter();
    let word = words.find(|word| *word == "--only" || word.starts_with("--only="))?;
    let value = word.strip_prefix("--only=");
    value.or_else(|| words.next().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::only;

    #[test]
    fn only_is_found_in_both_forms() {
        let value = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            only(&words).map(str::to_owned)
        };
        assert_eq!(
            value(&["--seed", "1", "--only", "a,b"]).as_deref(),
            Some("a,b")
        );
        assert_eq!(value(&["--only=a", "--seed"]).as_deref(), Some("a"));
        assert_eq!(value(&["--only-with", "a"]), None);
    }
}
