//! From source lines and inlined copies to symbols with offsets.

use std::ops::Range;

use address::Gva;
use debuginfo::{DebugInfo, InlinedError, LineError, LookupError};
use errors::chain;
use introspect::SymbolTable;
use manifest::{Location, ProbeSpec, ProbeVariable};
use thiserror::Error;

use super::module_file_error::ModuleFileError;
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
    /// All places are outside the kernel's functions.
    #[error(
        "cannot probe `{spec}`: none of its places is in a function that the kernel executes; the first is at the link-time address {first}"
    )]
    Outside {
        /// The probe.
        spec: String,
        /// The first place.
        first: Gva,
    },
    /// All places are outside a module's functions.
    #[error(
        "cannot probe `{spec}`: none of its places is in a function of the module that a processor executes"
    )]
    OutsideModule {
        /// The probe.
        spec: String,
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
    /// A place in a function of a module whose name others of the module have, too.
    #[error(
        "cannot probe `{spec}`: it is in one of several functions of the module called `{name}`"
    )]
    AmbiguousInModule {
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

impl SiteError {
    /// Whether the kernel has no such place. Other errors are about places that exist, and about a file that does not say.
    pub(crate) const fn is_absence(&self) -> bool {
        match self {
            Self::Line { source, .. } => {
                matches!(source, LineError::NoFile { .. } | LineError::NoCode { .. })
            }
            Self::Inlined { source, .. } => matches!(source, InlinedError::NoCopy { .. }),
            Self::Outside { .. }
            | Self::OutsideModule { .. }
            | Self::Ambiguous { .. }
            | Self::AmbiguousInModule { .. }
            | Self::TooMany { .. } => false,
        }
    }
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
            Self::Inlined {
                source: InlinedError::Ambiguous { .. },
                ..
            } => Some("write a line in the body of one of them: kprobe:FILE:LINE".to_owned()),
            Self::Inlined { spec, .. } => {
                let function = spec.strip_suffix(":inlined").unwrap_or(spec);
                Some(format!("write {function} for the function itself"))
            }
            Self::Outside { .. } | Self::OutsideModule { .. } => {
                Some("write a line with code of a function, or the function itself".to_owned())
            }
            Self::Ambiguous { .. } => Some(
                "boot with --boot direct, or add the probe to the running guest: hyprobe probe add"
                    .to_owned(),
            ),
            Self::AmbiguousInModule { .. } => Some("write a line of another function".to_owned()),
            _ => None,
        }
    }
}

/// Why a probe at a source line or at inlined copies has no sites.
#[derive(Debug, Error)]
pub(crate) enum SourceSiteError {
    /// The debug file of the module.
    #[error(transparent)]
    File(#[from] Box<ModuleFileError>),
    /// The line or the function.
    #[error(transparent)]
    Site(#[from] SiteError),
}

/// The symbols of the guest's kernel, at link-time addresses.
#[derive(Clone, Debug)]
pub(super) struct KernelSymbols<'k> {
    symbols: &'k SymbolTable,
    /// The distance from link-time addresses to running ones; `None` if it is not known.
    slide: Option<i64>,
    /// The text, during boot and after; empty if the linker's labels are missing.
    text: Vec<Range<Gva>>,
}

impl<'k> KernelSymbols<'k> {
    pub(super) fn new(symbols: &'k SymbolTable, slide: Option<i64>) -> Self {
        let label = |name| symbols.address_of(name);
        let text = match (label("_text"), label("_sinittext"), label("_einittext")) {
            (Some(start), Some(init), Some(end)) => match label("_etext") {
                Some(etext) => vec![start..etext, init..end],
                // The linker may give `_etext` to the data behind, whose symbols a debug file has not. There is no code between.
                None => vec![start..end],
            },
            _ => Vec::new(),
        };
        Self {
            symbols,
            slide,
            text,
        }
    }

    /// Whether a processor may execute `address`. The kernel copies the replacements of instructions to where they are executed.
    fn executes(&self, address: Gva) -> bool {
        self.text.is_empty() || self.text.iter().any(|text| text.contains(&address))
    }
}

/// A probe in place of one at a line or at inlined copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The place.
    pub(crate) spec: ProbeSpec,
    /// The variables of the line's function there.
    pub(crate) variables: Vec<ProbeVariable>,
}

impl Site {
    /// The probe `spec`, which needs no debug information, or has none.
    pub(super) fn only(spec: &ProbeSpec) -> Self {
        Self {
            spec: spec.clone(),
            variables: Vec::new(),
        }
    }
}

/// The places of a probe.
#[derive(Debug)]
pub(crate) struct Sites {
    /// A probe for each place that can be probed.
    pub(crate) sites: Vec<Site>,
    /// The number of places outside the kernel's functions.
    outside: usize,
    /// Why no place has variables.
    without_variables: Option<LookupError>,
}

impl Sites {
    /// The place of `spec`, which needs no debug information, or has none.
    pub(super) fn only(spec: &ProbeSpec) -> Self {
        Self {
            sites: vec![Site::only(spec)],
            outside: 0,
            without_variables: None,
        }
    }

    /// What the user has to know about the places of `spec`.
    pub(crate) fn notes(&self, spec: &ProbeSpec) -> Vec<String> {
        let why = "they are outside of the functions that the kernel executes";
        let all = self.outside + self.sites.len();
        let outside = (self.outside > 0).then(|| left_out(spec, self.outside, all, why));
        let variables = self
            .without_variables
            .as_ref()
            .map(|error| format!("hits of `{spec}` show no variables: {}", chain(error)));
        [outside, variables].into_iter().flatten().collect()
    }
}

/// The message about places that are not probed.
pub(super) fn left_out(spec: &ProbeSpec, number: usize, all: usize, why: &str) -> String {
    format!("of the {all} places of `{spec}`, {number} are left out: {why}")
}

/// The probes in place of `spec`, which is at a source line or at inlined copies in the kernel.
pub(super) fn sites(
    info: &DebugInfo,
    spec: &ProbeSpec,
    kernel: &KernelSymbols<'_>,
) -> Result<Sites, SiteError> {
    let places = places(info, spec)?;
    at_places(spec, places, |address| location(spec, address, kernel))
}

/// An address of a line or of an inlined copy, with the variables there.
#[derive(Clone, Debug)]
pub(super) struct FoundPlace {
    pub(super) address: Gva,
    pub(super) variables: Vec<ProbeVariable>,
}

/// The places of a probe.
#[derive(Clone, Debug)]
pub(super) struct FoundPlaces {
    pub(super) places: Vec<FoundPlace>,
    /// Why no place has variables.
    pub(super) without_variables: Option<LookupError>,
}

/// The places in the file `info` of the line or the inlined copies of `spec`; none for another place.
pub(super) fn places(info: &DebugInfo, spec: &ProbeSpec) -> Result<FoundPlaces, SiteError> {
    let named = || spec.to_string();
    let places = match &spec.location {
        Location::Line { file, line } => {
            info.places_of_line(file, *line)
                .map_err(|source| SiteError::Line {
                    spec: named(),
                    source,
                })?
        }
        Location::Inlined(function) => {
            info.inlined_copies(function)
                .map_err(|source| SiteError::Inlined {
                    spec: named(),
                    source,
                })?
        }
        Location::Symbol { .. }
        | Location::Address(_)
        | Location::Glob(_)
        | Location::Data(_)
        | Location::Program(_) => Vec::new(),
    };
    check_number(spec, places.len())?;
    // Most probes do without.
    let (variables, without_variables) = match info.variables(&places) {
        Ok(variables) => (variables, None),
        Err(error) => (vec![Vec::new(); places.len()], Some(error)),
    };
    let found = places.iter().zip(variables);
    let found = found.map(|(place, variables)| FoundPlace {
        address: place.address,
        variables: variables.into_iter().map(ProbeVariable::from).collect(),
    });
    Ok(FoundPlaces {
        places: found.collect(),
        without_variables,
    })
}

fn check_number(spec: &ProbeSpec, found: usize) -> Result<(), SiteError> {
    match found > MAX_SITES {
        true => Err(SiteError::TooMany {
            spec: spec.to_string(),
            found,
        }),
        false => Ok(()),
    }
}

/// The probes at `places`, which are those of `spec`, each at the `location` of its address, if the address has one.
pub(super) fn at_places(
    spec: &ProbeSpec,
    found: FoundPlaces,
    location: impl Fn(Gva) -> Result<Option<Location>, SiteError>,
) -> Result<Sites, SiteError> {
    let FoundPlaces {
        places,
        without_variables,
    } = found;
    let number = places.len();
    let first = places.first().map(|place| place.address);
    let mut sites = Vec::with_capacity(number);
    for FoundPlace { address, variables } in places {
        if let Some(location) = location(address)? {
            let spec = ProbeSpec {
                location,
                ..spec.clone()
            };
            sites.push(Site { spec, variables });
        }
    }
    match (first, sites.is_empty()) {
        (Some(first), true) => Err(SiteError::Outside {
            spec: spec.to_string(),
            first,
        }),
        _ => Ok(Sites {
            outside: number - sites.len(),
            sites,
            without_variables,
        }),
    }
}

/// The place at `address` by its symbol; `None` outside the kernel's functions. If other functions have the symbol's name, too, by its
/// running address.
fn location(
    spec: &ProbeSpec,
    address: Gva,
    kernel: &KernelSymbols<'_>,
) -> Result<Option<Location>, SiteError> {
    let found = kernel.symbols.resolve(address);
    let within = found.filter(|within| within.symbol.is_text() && kernel.executes(address));
    let Some(within) = within else {
        return Ok(None);
    };
    let name = within.symbol.name;
    let namesakes = kernel.symbols.lookup_all(&name);
    let is_unique = namesakes
        .iter()
        .filter(|symbol| symbol.is_text())
        .all(|symbol| symbol.address == within.symbol.address);
    match (is_unique, kernel.slide) {
        (true, _) => Ok(Some(Location::Symbol {
            name,
            offset: within.offset,
        })),
        (false, Some(slide)) => Ok(Some(Location::Address(
            address.wrapping_add(slide.cast_unsigned()),
        ))),
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

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn table(symbols: &[(u64, char, &str)]) -> SymbolTable {
        let mut builder = SymbolTableBuilder::new();
        for (low, kind, name) in symbols {
            builder.push(Gva(BASE + low), *kind, name);
        }
        builder.build()
    }

    fn line() -> ProbeSpec {
        "kprobe:a.c:1".parse().expect("a probe")
    }

    #[test]
    fn place_is_named_by_its_symbol_or_else_by_its_running_address() {
        let symbols = table(&[
            (0, 'T', "vfs_read"),
            (0x40, 't', "copy"),
            (0x80, 't', "copy"),
            (0x100, 'D', "data"),
        ]);
        let at = |low: u64, slide| {
            let kernel = KernelSymbols::new(&symbols, slide);
            location(&line(), Gva(BASE + low), &kernel)
        };
        let expected = Location::Symbol {
            name: "vfs_read".to_owned(),
            offset: 5,
        };
        assert_eq!(at(5, None).expect("unique"), Some(expected));
        let moved = Location::Address(Gva(0xffff_ffff_8200_0041));
        assert_eq!(at(0x41, Some(0x100_0000)).expect("known"), Some(moved));
        assert!(matches!(at(0x81, None), Err(SiteError::Ambiguous { .. })));
        assert_eq!(at(0x100, None).expect("data"), None);
    }

    /// A kernel of Debian. Its debug file has no symbols of data.
    const LAYOUT: [(u64, char, &str); 9] = [
        (0, 'T', "_text"),
        (0x10, 't', "entry"),
        (0x1000, 'D', "_etext"),
        (0x2000, 'D', "__init_begin"),
        (0x2100, 'T', "_sinittext"),
        (0x2110, 't', "setup"),
        (0x2800, 'T', "_einittext"),
        (0x2f00, 'T', "behind"),
        (0x3000, 'D', "__init_end"),
    ];

    #[test]
    fn place_outside_the_text_is_left_out_and_counted() {
        let code: Vec<_> = LAYOUT.into_iter().filter(|it| it.1 != 'D').collect();
        for symbols in [table(&LAYOUT), table(&code)] {
            let kernel = KernelSymbols::new(&symbols, None);
            let at = |lows: &[u64]| {
                let places = lows.iter().map(|low| FoundPlace {
                    address: Gva(BASE + low),
                    variables: Vec::new(),
                });
                let found = FoundPlaces {
                    places: places.collect(),
                    without_variables: None,
                };
                at_places(&line(), found, |at| location(&line(), at, &kernel))
            };
            // The third is a replacement, in a section between `_einittext` and the next symbol.
            let found = at(&[0x20, 0x2120, 0x2a00]).expect("places");
            let names: Vec<String> = found
                .sites
                .iter()
                .map(|site| site.spec.to_string())
                .collect();
            assert_eq!(names, ["kprobe:entry+0x10", "kprobe:setup+0x10"]);
            assert_eq!(
                found.notes(&line()),
                [
                    "of the 3 places of `kprobe:a.c:1`, 1 are left out: they are outside of the functions that the kernel executes"
                ]
            );
            let one = at(&[0x20]).expect("a place");
            assert_eq!(one.notes(&line()), [] as [&str; 0]);
            let damaged = Sites {
                without_variables: Some(LookupError::TooComplex),
                ..one
            };
            let note = &damaged.notes(&line())[0];
            assert!(note.starts_with("hits of `kprobe:a.c:1` show no variables: "));
            let error = at(&[0x2a00, 0x2b00]).expect_err("no place");
            assert!(!error.is_absence(), "{error}");
            assert_eq!(
                error.to_string(),
                "cannot probe `kprobe:a.c:1`: none of its places is in a function that the kernel executes; the first is at the \
                 link-time address 0xffffffff81002a00"
            );
        }
    }

    #[test]
    fn more_places_than_the_limit_are_refused() {
        assert!(check_number(&line(), MAX_SITES).is_ok());
        let error = check_number(&line(), MAX_SITES + 1).expect_err("too many");
        assert!(matches!(&error, SiteError::TooMany { found, .. } if *found == MAX_SITES + 1));
        assert!(!error.is_absence());
    }
}
