//! The places of `hyprobe probe add`: a request adds a limited number of probes, and a name is for one.

use control::limits::PROBES_PER_REQUEST;
use manifest::ProbeVariable;
use thiserror::Error;

use crate::exit::{Exit, Failure};
use crate::source_lines::Site;

/// The number of places in an error's advice.
const SHOWN: usize = 5;

/// Why the places of a command do not make a request.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum PlacesError {
    /// The places are too many.
    #[error(
        "cannot add {places} probes at once: `{spec}` alone stands for {largest} places, and a request adds at most {PROBES_PER_REQUEST}"
    )]
    TooMany {
        /// The number of all places.
        places: usize,
        /// The specification with the most places.
        spec: String,
        /// The number of its places.
        largest: usize,
    },
    /// A name for several places.
    #[error("cannot call `{spec}` by the name `{name}`: it stands for {} places", .places.len())]
    Name {
        /// The specification.
        spec: String,
        /// The name.
        name: String,
        /// The places.
        places: Vec<String>,
    },
}

impl Failure for PlacesError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        Some(match self {
            Self::TooMany { spec, largest, .. } if *largest > PROBES_PER_REQUEST => format!(
                "write a source line of the function, which has fewer places; at the start, hyprobe run -p {spec} takes up to 10 000"
            ),
            Self::TooMany { .. } => "add the probes by several commands".to_owned(),
            Self::Name { places, .. } => {
                let shown = places.get(..SHOWN).unwrap_or(places).join(", ");
                let more = if places.len() > SHOWN { ", …" } else { "" };
                format!("leave out --name, or name one place: {shown}{more}")
            }
        })
    }
}

/// A place to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) spec: String,
    /// The variables of the source line there.
    pub(super) variables: Vec<ProbeVariable>,
}

impl Place {
    /// The specification `spec`, which is sent as it is.
    pub(super) fn as_given(spec: &str) -> Self {
        Self {
            spec: spec.to_owned(),
            variables: Vec::new(),
        }
    }
}

impl From<Site> for Place {
    fn from(site: Site) -> Self {
        Self {
            spec: site.spec.to_string(),
            variables: site.variables,
        }
    }
}

/// Specifications, each with its places.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(String, Vec<Place>)>);

impl Places {
    /// Adds a specification with its places, or with itself.
    pub(super) fn push(&mut self, spec: &str, places: Vec<Place>) {
        self.0.push((spec.to_owned(), places));
    }

    /// All places, if one request with `name` can have them.
    pub(super) fn into_request(self, name: Option<&str>) -> Result<Vec<Place>, PlacesError> {
        let several = self.0.iter().find(|(_, places)| places.len() > 1);
        if let (Some(name), Some((spec, places))) = (name, several) {
            return Err(PlacesError::Name {
                spec: spec.clone(),
                name: name.to_owned(),
                places: places.iter().map(|place| place.spec.clone()).collect(),
            });
        }
        let places = self.0.iter().map(|(_, places)| places.len()).sum();
        let largest = self.0.iter().max_by_key(|(_, places)| places.len());
        match largest {
            Some((spec, largest)) if places > PROBES_PER_REQUEST => Err(PlacesError::TooMany {
                places,
                spec: spec.clone(),
                largest: largest.len(),
            }),
            _ => Ok(self.0.into_iter().flat_map(|(_, places)| places).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(numbers: &[usize]) -> Places {
        let mut places = Places::default();
        for (line, number) in numbers.iter().enumerate() {
            let all = (0..*number).map(|at| format!("kprobe:f{line}+{at:#x}"));
            let all = all.map(|spec| Place::as_given(&spec));
            places.push(&format!("kprobe:a.c:{line}"), all.collect());
        }
        places
    }

    #[test]
    fn places_that_fit_are_one_request() {
        let all = places(&[999, 1]).into_request(None).expect("a request");
        assert_eq!(all.len(), PROBES_PER_REQUEST);
        let named = places(&[1]).into_request(Some("x")).expect("a request");
        assert_eq!(named, [Place::as_given("kprobe:f0+0x0")]);
    }

    #[test]
    fn too_many_places_are_refused_with_their_number_and_the_limit() {
        let error = places(&[3, 1001]).into_request(None).expect_err("too many");
        assert_eq!(
            error.to_string(),
            "cannot add 1004 probes at once: `kprobe:a.c:1` alone stands for 1001 places, and a request adds at most 1000"
        );
        let help = error.help().expect("help");
        assert!(help.contains("hyprobe run -p kprobe:a.c:1"), "{help}");
        let error = places(&[600, 500])
            .into_request(None)
            .expect_err("too many");
        assert_eq!(
            error.help().expect("help"),
            "add the probes by several commands"
        );
    }

    #[test]
    fn name_for_several_places_is_refused_with_the_places() {
        let error = places(&[1, 7]).into_request(Some("x")).expect_err("a name");
        assert_eq!(
            error.to_string(),
            "cannot call `kprobe:a.c:1` by the name `x`: it stands for 7 places"
        );
        assert_eq!(
            error.help().expect("help"),
            "leave out --name, or name one place: kprobe:f1+0x0, kprobe:f1+0x1, kprobe:f1+0x2, kprobe:f1+0x3, kprobe:f1+0x4, …"
        );
    }
}
