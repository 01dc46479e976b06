//! Problem documents (RFC 9457).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reason for a refused request. `detail` and `help` are the sentences that the command line prints for the same mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Type of the problem: `urn:hyprobe:problem:` and a stable word.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "urn:hyprobe:problem:cannot-probe")]
    pub kind: Box<str>,
    /// Description of the problem's type.
    #[schema(value_type = String)]
    pub title: Box<str>,
    /// HTTP status of the answer.
    pub status: u16,
    /// The mistake in the request, or the cause of the failure.
    pub detail: String,
    /// Advice on how to correct the mistake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub help: Option<String>,
    /// The refused part of the body, as a JSON pointer (RFC 6901).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pointer: Option<String>,
}

/// The types of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// A part of the request is malformed.
    Malformed,
    /// The body is larger than the limit.
    TooLarge,
    /// The request did not come in time.
    TooSlow,
    /// The path does not exist.
    NoSuchPath,
    /// The path does not have the method.
    NoSuchMethod,
    /// The probe does not exist.
    NoSuchProbe,
    /// The task or the vCPU does not exist.
    NoSuchTask,
    /// Parts of the request exclude each other, or a necessary part is missing.
    Contradictory,
    /// The text is no probe specification.
    NotAProbe,
    /// The text is no filter, or no aggregate.
    NotAProgram,
    /// The kernel has no site for the probe, the site cannot be planted, or the aggregate does not fit the kind of probe.
    CannotProbe,
    /// The name is taken.
    NameTaken,
    /// The guest memory cannot be read.
    CannotRead,
    /// The text is no expression, or no name of a type.
    NotAnExpression,
    /// The expression has no value, or the kernel has no such type.
    CannotEvaluate,
    /// The change could not be made; nothing has changed.
    CannotChange,
    /// KVM refused a request that changes nothing.
    KvmRefused,
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
            Self::NoSuchTask => ("no-such-task", 404, "There is no such task or vCPU"),
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
            Self::NotAnExpression => ("not-an-expression", 422, "The text is no expression"),
            Self::CannotEvaluate => ("cannot-evaluate", 422, "It has no value"),
            Self::CannotChange => ("cannot-change", 500, "The change could not be made"),
            Self::KvmRefused => ("kvm-refused", 500, "KVM refused a request"),
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

    /// Creates a problem of the type `self`.
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
    /// Sets the advice.
    #[must_use]
    pub fn help(self, help: Option<String>) -> Self {
        Self { help, ..self }
    }

    /// Sets the pointer to the refused part of the body.
    #[must_use]
    pub fn at(self, pointer: String) -> Self {
        Self {
            pointer: Some(pointer),
            ..self
        }
    }

    /// Whether the problem has the type `kind`.
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
    fn problem_has_the_form_of_the_rfc() {
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
