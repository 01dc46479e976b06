//! What went wrong, as RFC 9457 has it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was refused. `detail` and `help` are the sentences that the command line prints for the same mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:hyprobe:problem:` and a word that stays the same.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "urn:hyprobe:problem:cannot-probe")]
    pub kind: Box<str>,
    /// What this type of problem is.
    #[schema(value_type = String)]
    pub title: Box<str>,
    /// The status of the answer.
    pub status: u16,
    /// What is wrong here.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub help: Option<String>,
    /// Which part of the body it is about, as a JSON pointer (RFC 6901).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pointer: Option<String>,
}

/// The types of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The body or the query is not what it should be.
    Malformed,
    /// The body is larger than the limit.
    TooLarge,
    /// The request did not come in time.
    TooSlow,
    /// There is no such path.
    NoSuchPath,
    /// The path has no such method.
    NoSuchMethod,
    /// There is no such probe.
    NoSuchProbe,
    /// Parts of the request exclude each other, or a part is missing that another one needs.
    Contradictory,
    /// The text is no probe.
    NotAProbe,
    /// The text is no filter, or no aggregate.
    NotAProgram,
    /// The kernel has no place for it, or none that can be planted.
    CannotProbe,
    /// The name is taken.
    NameTaken,
    /// There are no bytes to read.
    CannotRead,
    /// The change could not be made; nothing has changed.
    CannotChange,
    /// Too many requests at once.
    Busy,
    /// The run is over.
    Ending,
    /// The caller is another user.
    NotAllowed,
}

impl ProblemKind {
    /// The word in the type, the status and the title.
    const fn parts(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::Malformed => ("malformed", 400, "The request cannot be understood"),
            Self::TooLarge => ("too-large", 413, "The request is too large"),
            Self::TooSlow => ("too-slow", 408, "The request did not come in time"),
            Self::NoSuchPath => ("no-such-path", 404, "There is no such path"),
            Self::NoSuchMethod => ("no-such-method", 405, "The path has no such method"),
            Self::NoSuchProbe => ("no-such-probe", 404, "There is no such probe"),
            Self::Contradictory => (
                "contradictory",
                422,
                "Parts of the request do not fit together",
            ),
            Self::NotAProbe => ("not-a-probe", 422, "The text is no probe"),
            Self::NotAProgram => ("not-a-program", 422, "The text is no program"),
            Self::CannotProbe => ("cannot-probe", 422, "It cannot be probed"),
            Self::NameTaken => ("name-taken", 409, "The name is taken"),
            Self::CannotRead => ("cannot-read", 422, "The memory cannot be read"),
            Self::CannotChange => ("cannot-change", 500, "The change could not be made"),
            Self::Busy => ("busy", 503, "Too many requests at once"),
            Self::Ending => ("ending", 503, "The run is over"),
            Self::NotAllowed => ("not-allowed", 403, "The caller is not allowed to"),
        }
    }

    /// The value of `type`.
    #[must_use]
    pub fn urn(self) -> String {
        format!("urn:hyprobe:problem:{}", self.parts().0)
    }

    /// A problem of this type.
    pub fn with(self, detail: impl Into<String>) -> Problem {
        let (_, status, title) = self.parts();
        Problem {
            kind: self.urn().into(),
            title: title.into(),
            status,
            detail: detail.into(),
            help: None,
            pointer: None,
        }
    }
}

impl Problem {
    /// The same with advice.
    #[must_use]
    pub fn help(self, help: Option<String>) -> Self {
        Self { help, ..self }
    }

    /// The same about a part of the body.
    #[must_use]
    pub fn at(self, pointer: String) -> Self {
        Self {
            pointer: Some(pointer),
            ..self
        }
    }

    /// Whether it is of this type.
    #[must_use]
    pub fn is(&self, kind: ProblemKind) -> bool {
        *self.kind == *kind.urn()
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_the_rfc_says() {
        let problem = ProblemKind::NoSuchProbe.with("there is no probe 7");
        let json = serde_json::to_value(&problem).expect("json");
        assert_eq!(
            json,
            serde_json::json!({
                "type": "urn:hyprobe:problem:no-such-probe",
                "title": "There is no such probe",
                "status": 404,
                "detail": "there is no probe 7",
            })
        );
        assert!(problem.is(ProblemKind::NoSuchProbe));
    }
}
