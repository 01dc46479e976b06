//! The selection of cases by parts of their names, separated by commas: `--only`.

use thiserror::Error;

/// The minimum similarity of a suggested name; equal names have 1.0.
const SIMILARITY_MIN: f64 = 0.6;
/// The maximum number of suggested names.
const SUGGESTED_MAX: usize = 3;

/// A part of `--only` is in no case's name.
#[derive(Debug, Error)]
#[error(
    "`--only`: no case of this run has `{part}` in its name{}",
    in_words(similar)
)]
pub struct SelectionError {
    /// The part.
    pub part: String,
    /// The names most similar to the part, without the levels that the part lacks.
    pub similar: Vec<String>,
}

fn in_words(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        similar => format!("; similar names: {}", similar.join(", ")),
    }
}

/// Whether one of the parts of `only` is in the case's name.
pub(crate) fn is_selected(only: &str, case: &str) -> bool {
    only.split(',').any(|part| case.contains(part))
}

/// The selected names, in the order of `names`.
pub(crate) fn select(only: &str, names: Vec<String>) -> Result<Vec<String>, SelectionError> {
    let is_known = |part: &&str| names.iter().any(|name| name.contains(part));
    if let Some(part) = only.split(',').find(|part| !is_known(part)) {
        return Err(SelectionError {
            part: part.to_owned(),
            similar: similar(part, &names),
        });
    }
    let selected = names.into_iter().filter(|name| is_selected(only, name));
    Ok(selected.collect())
}

fn similar(part: &str, names: &[String]) -> Vec<String> {
    let levels = part.split('/').count();
    let mut found: Vec<(f64, String)> = Vec::new();
    for name in names {
        let name = name.split('/').take(levels).collect::<Vec<_>>().join("/");
        let similarity = strsim::normalized_damerau_levenshtein(part, &name);
        if similarity >= SIMILARITY_MIN && !found.iter().any(|(_, known)| *known == name) {
            found.push((similarity, name));
        }
    }
    found.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    let names = found.into_iter().map(|(_, name)| name);
    names.take(SUGGESTED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["calls/port/1", "calls/int3/1", "smp/int3/2"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn each_part_selects_its_cases_in_the_order_of_the_names() {
        let selected = select("smp,calls/int3", names()).expect("known parts");
        assert_eq!(selected, ["calls/int3/1", "smp/int3/2"]);
        assert_eq!(select("", names()).expect("no selection"), names());
    }

    #[test]
    fn part_without_a_case_is_an_error_that_suggests_names() {
        let error = |only| select(only, names()).expect_err("an unknown part");
        assert_eq!(
            error("smp,cals").to_string(),
            "`--only`: no case of this run has `cals` in its name; similar names: calls"
        );
        assert_eq!(
            error("calls/prt/1").similar,
            ["calls/port/1", "calls/int3/1"]
        );
        assert_eq!(
            error("zzz").to_string(),
            "`--only`: no case of this run has `zzz` in its name"
        );
    }
}
