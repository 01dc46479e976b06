//! Routes for symbols and guest memory.

use std::sync::Arc;

use address::{Gpa, Gva};
use axum::extract::State;
use base64::Engine as _;
use events::Hex;
use probes::{At, ReadError};
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::App;
use super::body::{JsonResponse, QueryParams};
use crate::api::{Encoding, Memory, Problem, ProblemKind, Symbol, Symbols};
use crate::limits::{MEMORY_BYTES, PATTERN_CHARS, SYMBOLS, SYMBOLS_SHOWN};

/// Query of symbols: a pattern and a limit.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SymbolsQuery {
    /// A pattern for whole names, as in `kprobe:PATTERN`: `*`, `?`, `[a-z]`. At most 256 characters.
    #[serde(rename = "match")]
    #[param(rename = "match", example = "vfs_*", max_length = 256)]
    pattern: String,
    /// Maximum number of symbols, up to 10 000; default 100.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    limit: Option<usize>,
}

/// Lists symbols of the guest's kernel, in the order of their addresses.
#[utoipa::path(get, path = "/symbols", tag = "look", params(SymbolsQuery),
    responses((status = 200, description = "Symbols, maybe none", body = Symbols),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn symbols(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<SymbolsQuery>,
) -> Result<JsonResponse<Symbols>, Problem> {
    if query.pattern.chars().count() > PATTERN_CHARS {
        let detail = format!("the pattern is longer than {PATTERN_CHARS} characters");
        return Err(ProblemKind::Malformed.with(detail));
    }
    let limit = query.limit.unwrap_or(SYMBOLS_SHOWN).min(SYMBOLS);
    let slide = app.target.slide().unwrap_or(0);
    let mut matching = app.target.symbols().matching(&query.pattern);
    let symbols = matching.by_ref().take(limit).map(|symbol| Symbol {
        address: running_at(symbol.address, slide).into(),
        kind: symbol.kind,
        size: symbol.size,
        name: symbol.name,
    });
    Ok(JsonResponse(Symbols {
        symbols: symbols.collect(),
        more: matching.next().is_some(),
    }))
}

/// The running address of a symbol. Values in the lower half are offsets and numbers, which do not move.
fn running_at(linked: Gva, slide: i64) -> Gva {
    match linked.0 >> 63 {
        0 => linked,
        _ => linked.wrapping_add(slide.cast_unsigned()),
    }
}

/// Query of guest memory: a range and an encoding.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MemoryQuery {
    /// Address in the kernel's address space; give either `gva` or `gpa`.
    #[serde(default)]
    gva: Option<Hex>,
    /// Guest-physical address; give either `gva` or `gpa`.
    #[serde(default)]
    gpa: Option<Hex>,
    /// Number of bytes, at most 65 536.
    #[param(minimum = 1, maximum = 65536)]
    len: u64,
    /// Encoding of the bytes; default `hex`.
    #[serde(default)]
    encoding: Encoding,
}

/// Reads guest memory without plants, as the guest sees the memory.
///
/// A running guest may write to the range during the read: pause the machine for consistent bytes.
#[utoipa::path(get, path = "/memory", tag = "look", params(MemoryQuery),
    responses((status = 200, description = "The bytes", body = Memory),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "Neither or both of `gva` and `gpa` are given, or there is no such memory, or it is not mapped", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn memory(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<MemoryQuery>,
) -> Result<JsonResponse<Memory>, Problem> {
    let at = match (query.gva, query.gpa) {
        (Some(gva), None) => At::Virtual(Gva(gva.0)),
        (None, Some(gpa)) => At::Physical(Gpa(gpa.0)),
        _ => return Err(ProblemKind::Contradictory.with("say where: either `gva` or `gpa`")),
    };
    let len = usize::try_from(query.len)
        .ok()
        .filter(|_| (1..=MEMORY_BYTES).contains(&query.len))
        .ok_or_else(|| {
            ProblemKind::Malformed.with(format!("`len` is a number from 1 to {MEMORY_BYTES}"))
        })?;
    let mut bytes = vec![0; len];
    app.target.read(at, &mut bytes).map_err(cannot_read)?;
    Ok(JsonResponse(Memory {
        gva: query.gva,
        gpa: query.gpa,
        len: query.len,
        encoding: query.encoding,
        bytes: match query.encoding {
            Encoding::Hex => hex(&bytes),
            Encoding::Base64 => base64::prelude::BASE64_STANDARD.encode(&bytes),
        },
    }))
}

fn cannot_read(error: ReadError) -> Problem {
    let help = match error {
        ReadError::Virtual { .. } => {
            Some("addresses of programs are not the kernel's; physical ones go as `gpa`".to_owned())
        }
        ReadError::Physical { .. } | ReadError::TooEarly { .. } => None,
    };
    ProblemKind::CannotRead.with(error.to_string()).help(help)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernel_addresses_move_by_the_slide() {
        assert_eq!(running_at(Gva(0x1000), 0x10), Gva(0x1000));
        let linked = Gva(0xffff_ffff_8100_0000);
        assert_eq!(running_at(linked, -0x10).0, linked.0 - 0x10);
    }

    #[test]
    fn two_digits_a_byte() {
        assert_eq!(hex(&[0, 0x5f, 0xff]), "005fff");
    }
}
