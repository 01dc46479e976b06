//! From source lines and inlined copies to symbols with offsets.

use address::Gva;
use debuginfo::{DebugInfo, InlinedError, LineError};
use introspect::SymbolTable;
use manifest::{Location, ProbeSpec};
use thiserror::Error;

use crate::exit::{Exit, Failure};

/// The most places of one probe. A function that is inlined more often is no place to stop at.
const MAX_SITES: usize = 10_000;

/// Why a line or a function has no places that can be probed.
#[derive(Debug, Error)]
pub(crate) enum SiteError {
    /// The line.
    #[error("cannot probe `{spec}`")]
    Line {
        /// The probe.
        spec: String,
        /// The cause.
        source: LineError,
    },
    /// The inlined copies.
    #[error("cannot probe `{spec}`")]
    Inlined {
        /// The probe.
        spec: String,
        /// The cause.
        source: InlinedError,
    },
    /// A place without a symbol.
    #[error("cannot probe `{spec}`: the kernel has no symbol at the link-time address {address}")]
    NoSymbol {
        /// The probe.
        spec: String,
        /// The place.
        address: Gva,
    },
    /// A place in a function whose name others have, too, in a kernel that chooses its address at boot.
    #[error(
        "cannot probe `{spec}`: it is in one of several functions called `{name}`, and the kernel's address is not known before it runs"
    )]
    Ambiguous {
        /// The probe.
        spec: String,
        /// The name.
        name: String,
    },
    /// Too many places.
    #[error("cannot probe `{spec}`: it stands for {found} places, and {MAX_SITES} are the most")]
    TooMany {
        /// The probe.
        spec: String,
        /// The number of places.
        found: usize,
    },
}

impl Failure for SiteError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Line {
                source: LineError::Ambiguous { .. },
                ..
            } => Some("write more of the path".to_owned()),
            Self::Inlined { spec, .. } => {
                let function = spec.strip_suffix(":inlined").unwrap_or(spec);
                Some(format!("write {function} for the function itself"))
            }
            Self::Ambiguous { .. } => Some(
                "boot with --boot direct, or add the probe to the running guest: hyprobe probe add"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// The symbols of the guest's kernel, at link-time addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelSymbols<'k> {
    pub(crate) symbols: &'k SymbolTable,
    /// The distance from link-time addresses to running ones; `None` if it is not known.
    pub(crate) slide: Option<i64>,
}

/// The probes in place of `spec`, which is at a source line or at inlined copies.
pub(crate) fn sites(
    info: &DebugInfo,
    spec: &ProbeSpec,
    kernel: KernelSymbols<'_>,
) -> Result<Vec<ProbeSpec>, SiteError> {
    let addresses = match &spec.location {
        Location::Line { file, line } => {
            info.addresses_of_line(file, *line)
                .map_err(|source| SiteError::Line {
                    spec: spec.to_string(),
                    source,
                })?
        }
        Location::Inlined(function) => {
            info.inlined_copies(function)
                .map_err(|source| SiteError::Inlined {
                    spec: spec.to_string(),
                    source,
                })?
        }
        Location::Symbol { .. } | Location::Address(_) | Location::Glob(_) => {
            return Ok(vec![spec.clone()]);
        }
    };
    if addresses.len() > MAX_SITES {
        return Err(SiteError::TooMany {
            spec: spec.to_string(),
            found: addresses.len(),
        });
    }
    let site = |address| {
        Ok(ProbeSpec {
            location: location(spec, address, kernel)?,
            ..spec.clone()
        })
    };
    addresses.into_iter().map(site).collect()
}

/// The place at `address` by its symbol. If other functions have the symbol's name, too, by its running address.
fn location(
    spec: &ProbeSpec,
    address: Gva,
    kernel: KernelSymbols<'_>,
) -> Result<Location, SiteError> {
    let found = kernel.symbols.resolve(address);
    let Some(within) = found.filter(|within| within.symbol.is_text()) else {
        let spec = spec.to_string();
        return Err(SiteError::NoSymbol { spec, address });
    };
    let name = within.symbol.name;
    let namesakes = kernel.symbols.lookup_all(&name);
    let is_unique = namesakes
        .iter()
        .filter(|symbol| symbol.is_text())
        .all(|symbol| symbol.address == within.symbol.address);
    match (is_unique, kernel.slide) {
        (true, _) => Ok(Location::Symbol {
            name,
            offset: within.offset,
        }),
        (false, Some(slide)) => Ok(Location::Address(
            address.wrapping_add(slide.cast_unsigned()),
        )),
        (false, None) => Err(SiteError::Ambiguous {
            spec: spec.to_string(),
            name,
        }),
    }
}

#[cfg(test)]
mod tests {
    use introspect::SymbolTableBuilder;

    use super::*;

    #[test]
    fn place_is_named_by_its_symbol_or_else_by_its_running_address() {
        let mut builder = SymbolTableBuilder::new();
        for (at, kind, name) in [
            (0xffff_ffff_8100_0000, 'T', "vfs_read"),
            (0xffff_ffff_8100_0040, 't', "copy"),
            (0xffff_ffff_8100_0080, 't', "copy"),
            (0xffff_ffff_8100_0100, 'D', "data"),
        ] {
            builder.push(Gva(at), kind, name);
        }
        let symbols = builder.build();
        let spec: ProbeSpec = "kprobe:a.c:1".parse().expect("a probe");
        let at = |low: u64, slide| {
            let symbols = &symbols;
            let kernel = KernelSymbols { symbols, slide };
            location(&spec, Gva(0xffff_ffff_8100_0000 + low), kernel)
        };
        let expected = Location::Symbol {
            name: "vfs_read".to_owned(),
            offset: 5,
        };
        assert_eq!(at(5, None).expect("a place"), expected);
        let moved = Location::Address(Gva(0xffff_ffff_8200_0041));
        assert_eq!(at(0x41, Some(0x100_0000)).expect("a place"), moved);
        assert!(matches!(at(0x81, None), Err(SiteError::Ambiguous { .. })));
        assert!(matches!(at(0x100, None), Err(SiteError::NoSymbol { .. })));
    }
}
