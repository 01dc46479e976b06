//! Parses probe specifications.

use super::error::{ELSEWHERE, MAX_BYTES};
use super::piece::{Piece, check, check_characters, parse_address, parse_offset};
use super::{
    INLINED, Location, ModuleSpec, ProbeKind, ProbeSpec, SpecError, SpecProblem, program_code,
    watched,
};

pub(super) fn parse(text: &str) -> Result<ProbeSpec, SpecError> {
    let whole = Piece { text, start: 0 };
    if text.trim().is_empty() {
        return Err(whole.is(SpecProblem::Empty));
    }
    // The match of a pattern with each symbol takes a time that grows with the pattern's length.
    if text.len() > MAX_BYTES {
        return Err(whole.is(SpecProblem::TooLong(text.len())));
    }
    let Some((kind, place)) = whole.split(':') else {
        return Err(whole.is(match parse_kind(whole) {
            Ok(_) => SpecProblem::NoLocation,
            Err(_) => SpecProblem::NoKind(text.to_owned()),
        }));
    };
    let kind = parse_kind(kind)?;
    match kind {
        ProbeKind::Tracepoint => return parse_tracepoint(place),
        ProbeKind::Watch => {
            let (module, data) = watched::parse(place)?;
            return Ok(ProbeSpec {
                kind,
                module: module.map(parse_module).transpose()?,
                location: Location::Data(data),
            });
        }
        ProbeKind::Uprobe | ProbeKind::Uretprobe | ProbeKind::Usdt => {
            return Ok(ProbeSpec {
                kind,
                module: None,
                location: Location::Program(program_code::parse(kind, place)?),
            });
        }
        _ => (),
    }
    if let Some(location) = parse_source(kind, place)? {
        return Ok(ProbeSpec {
            kind,
            module: None,
            location,
        });
    }
    let (module, place) = match place.split(':') {
        None => (None, place),
        Some(_) if kind.is_syscall() => return Err(place.is(SpecProblem::SyscallInModule)),
        Some((module, place)) => (Some(parse_module(module)?), place),
    };
    if let Some(location) = parse_source(kind, place)? {
        return Ok(ProbeSpec {
            kind,
            module,
            location,
        });
    }
    if place.text.contains(':') {
        return Err(place.is(SpecProblem::TooManyColons));
    }
    let location = parse_place(place)?;
    if module.is_some() && matches!(location, Location::Address(_)) {
        return Err(place.is(SpecProblem::AddressInModule));
    }
    let has_offset = matches!(location, Location::Symbol { offset, .. } if offset != 0);
    match location {
        Location::Address(_) if kind.is_syscall() => {
            return Err(place.is(SpecProblem::AddressOfSyscall));
        }
        _ if has_offset && kind.is_syscall() => {
            return Err(place.is(SpecProblem::OffsetOfSyscall));
        }
        _ if has_offset && kind.is_return() => {
            return Err(place.is(SpecProblem::OffsetOfReturn));
        }
        _ => (),
    }
    Ok(ProbeSpec {
        kind,
        module,
        location,
    })
}

/// Parses `FILE:LINE` and `FUNCTION:inlined`; `None` for another place. The name of a module has no dot.
fn parse_source(kind: ProbeKind, place: Piece<'_>) -> Result<Option<Location>, SpecError> {
    let source = place.split(':');
    let source =
        source.filter(|(named, behind)| named.text.contains('.') || behind.text == INLINED);
    let Some((named, behind)) = source else {
        return Ok(None);
    };
    if kind != ProbeKind::Kprobe {
        return Err(place.is(SpecProblem::LineOfOther));
    }
    let location = if behind.text == INLINED {
        if named.text.is_empty() {
            return Err(named.is(SpecProblem::NoLocation));
        }
        check_characters(named, false)?;
        Location::Inlined(named.text.to_owned())
    } else {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.-+/".contains(c);
        check(named, fits)?;
        // `u64::from_str` would accept a sign.
        let is_number = behind.text.bytes().all(|byte| byte.is_ascii_digit());
        let line = behind
            .text
            .parse()
            .ok()
            .filter(|&line| is_number && line > 0);
        let bad = || behind.is(SpecProblem::BadLine(behind.text.to_owned()));
        Location::Line {
            file: named.text.to_owned(),
            line: line.ok_or_else(bad)?,
        }
    };
    Ok(Some(location))
}

/// Parses `GROUP:NAME`; each may be a pattern.
fn parse_tracepoint(place: Piece<'_>) -> Result<ProbeSpec, SpecError> {
    const ENTRY: &str = "sys_enter_";
    const EXIT: &str = "sys_exit_";
    let Some((group, name)) = place.split(':') else {
        return Err(place.is(SpecProblem::NotATracepoint));
    };
    let is_pattern = place.text.contains(['*', '?', '[']);
    for piece in [group, name] {
        let is_plain = !piece.text.is_empty() && !piece.text.contains([':', '+']);
        if !is_plain {
            return Err(place.is(SpecProblem::NotATracepoint));
        }
        check_characters(piece, is_pattern)?;
    }
    if group.text == "syscalls" {
        let kind = if name.text.starts_with(EXIT) {
            ProbeKind::Retsyscall
        } else {
            ProbeKind::Syscall
        };
        let call = name.text.strip_prefix(ENTRY);
        let call = call.or_else(|| name.text.strip_prefix(EXIT));
        let right = format!("{}:{}", kind.keyword(), call.unwrap_or("NAME"));
        return Err(place.is(SpecProblem::SyscallEvent(right)));
    }
    let text = place.text.to_owned();
    Ok(ProbeSpec {
        kind: ProbeKind::Tracepoint,
        module: None,
        location: if is_pattern {
            Location::Glob(text)
        } else {
            Location::Symbol {
                name: text,
                offset: 0,
            }
        },
    })
}

fn parse_kind(word: Piece<'_>) -> Result<ProbeKind, SpecError> {
    if let Some(kind) = ProbeKind::ALL
        .into_iter()
        .find(|kind| kind.keyword() == word.text)
    {
        return Ok(kind);
    }
    Err(word.is(
        match ELSEWHERE.into_iter().find(|&known| known == word.text) {
            Some(known) => SpecProblem::NotYet(known),
            None => SpecProblem::UnknownKind(word.text.to_owned()),
        },
    ))
}

/// Parses `NAME` and `NAME@BUILD`.
fn parse_module(module: Piece<'_>) -> Result<ModuleSpec, SpecError> {
    let (name, build) = match module.split('@') {
        Some((name, build)) => (name, Some(build)),
        None => (module, None),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.text.is_empty() || !name.text.chars().all(fits) {
        return Err(name.is(SpecProblem::BadModule(name.text.to_owned())));
    }
    Ok(ModuleSpec {
        // The kernel's name of a module has underscores, even if the file's name has hyphens.
        name: name.text.replace('-', "_"),
        build: build.map(parse_build).transpose()?,
    })
}

fn parse_build(build: Piece<'_>) -> Result<String, SpecError> {
    let is_digits = build.text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_digits && !build.text.is_empty() {
        true => Ok(build.text.to_ascii_lowercase()),
        false => Err(build.is(SpecProblem::BadBuild(build.text.to_owned()))),
    }
}

fn parse_place(place: Piece<'_>) -> Result<Location, SpecError> {
    let (base, offset) = match place.split('+') {
        Some((base, offset)) => (base, Some(offset)),
        None => (place, None),
    };
    if base.text.is_empty() {
        return Err(base.is(SpecProblem::NoLocation));
    }
    if base.text.starts_with(|first: char| first.is_ascii_digit()) {
        let address = parse_address(base)?;
        return match offset {
            Some(offset) => Err(offset.is(SpecProblem::OffsetFromAddress)),
            None => Ok(Location::Address(address)),
        };
    }
    let is_pattern = base.text.contains(['*', '?', '[']);
    check_characters(base, is_pattern)?;
    match (is_pattern, offset) {
        (true, Some(offset)) => Err(offset.is(SpecProblem::OffsetFromPattern)),
        (true, None) => Ok(Location::Glob(base.text.to_owned())),
        (false, offset) => Ok(Location::Symbol {
            name: base.text.to_owned(),
            offset: offset.map_or(Ok(0), parse_offset)?,
        }),
    }
}
