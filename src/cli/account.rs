//! `--user`.

use std::str::FromStr;

use thiserror::Error;

/// `USER[:GROUP]`, names or numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// A name, or a number.
    pub(crate) user: String,
    /// A name, or a number.
    pub(crate) group: Option<String>,
}

/// The text is no `USER[:GROUP]`.
#[derive(Debug, Error)]
#[error("write USER or USER:GROUP, names or numbers")]
pub(crate) struct AccountError;

impl FromStr for Account {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, AccountError> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains([':', '\n']);
        match is_name(user) && group.is_none_or(is_name) {
            true => Ok(Self {
                user: user.to_owned(),
                group: group.map(str::to_owned),
            }),
            false => Err(AccountError),
        }
    }
}
