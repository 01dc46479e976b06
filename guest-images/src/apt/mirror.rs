//! Choice of the Debian mirror: by default the mirror of the system's apt, which is near by, or the only reachable mirror.

use std::env::{self, VarError};
use std::path::Path;

use super::configured::{Configured, configured};
use super::mirror_error::{MirrorError, UriError};

const VARIABLE: &str = "HYPROBE_MIRROR";
const DEFAULT: &str = "http://deb.debian.org/debian";
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
];
/// Allowed characters of a URI besides letters and digits. Blanks, quotes, brackets and `#` would end the URI in a line of `sources.list`.
const URI_PUNCTUATION: &str = "-._~:/@%+=,";

/// A Debian mirror, with the keyring for the signatures of its lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) uri: String,
    /// The keyring's file, or several files in the form of apt's option `signed-by`.
    keyring: String,
}

impl Mirror {
    /// The mirror's line of `sources.list` for `suite`. apt trusts only the keys of the named keyring.
    pub(crate) fn source_line(&self, suite: &str) -> String {
        format!(
            "deb [signed-by={}] {} {suite} main\n",
            self.keyring, self.uri
        )
    }
}

/// The mirrors to try, best first: only `$HYPROBE_MIRROR` if set; otherwise the system's mirror, then `archive`.
///
/// # Errors
///
/// `$HYPROBE_MIRROR` or `archive` is no URI for apt, or Debian's keyring is not installed.
pub(crate) fn mirrors(archive: Option<&str>) -> Result<Vec<Mirror>, MirrorError> {
    let chosen = chosen(env::var(VARIABLE))?;
    let system = configured(Path::new("/etc/apt"));
    let debian_keyring = KEYRINGS.into_iter().find(|path| Path::new(path).is_file());
    choose(chosen, system, archive, debian_keyring)
}

/// The user's mirror; `None` if the variable is empty or not set.
fn chosen(variable: Result<String, VarError>) -> Result<Option<String>, MirrorError> {
    let uri = match variable {
        Err(VarError::NotPresent) => return Ok(None),
        Err(VarError::NotUnicode(value)) => return Err(MirrorError::NotUtf8 { value }),
        Ok(uri) if uri.is_empty() => return Ok(None),
        Ok(uri) => uri,
    };
    match check_uri(&uri) {
        Ok(()) => Ok(Some(uri)),
        Err(reason) => Err(MirrorError::Variable { uri, reason }),
    }
}

fn choose(
    chosen: Option<String>,
    system: Option<Configured>,
    archive: Option<&str>,
    debian_keyring: Option<&str>,
) -> Result<Vec<Mirror>, MirrorError> {
    let mirror = |uri: &str, signed_by: Option<String>| {
        let keyring = signed_by.or_else(|| debian_keyring.map(str::to_owned));
        Ok(Mirror {
            uri: uri.trim_end_matches('/').to_owned(),
            keyring: keyring.ok_or(MirrorError::NoKeyring)?,
        })
    };
    if let Some(uri) = chosen {
        return Ok(vec![mirror(&uri, None)?]);
    }
    let system = system
        .filter(|system| check_uri(&system.uri).is_ok())
        .unwrap_or_else(|| Configured::new(DEFAULT, None));
    let mut mirrors = vec![mirror(&system.uri, system.signed_by)?];
    if let Some(uri) = archive {
        check_uri(uri).map_err(|reason| MirrorError::Archive {
            uri: uri.to_owned(),
            reason,
        })?;
        // Without Debian's keyring, the system's mirror is still usable.
        mirrors.extend(mirror(uri, None).ok());
    }
    Ok(mirrors)
}

/// Checks that `uri` is the URI of a mirror, and valid in a line of `sources.list`.
fn check_uri(uri: &str) -> Result<(), UriError> {
    let character = |c: &char| !c.is_ascii_alphanumeric() && !URI_PUNCTUATION.contains(*c);
    if let Some(character) = uri.chars().find(character) {
        return Err(UriError::Character { character });
    }
    let host = ["http://", "https://"]
        .into_iter()
        .find_map(|scheme| uri.strip_prefix(scheme));
    match (host, uri.strip_prefix("file:")) {
        (Some(rest), _) if rest.is_empty() || rest.starts_with('/') => Err(UriError::NoHost),
        (None, Some(path)) if !path.starts_with('/') => Err(UriError::RelativePath),
        (None, None) => Err(UriError::Scheme),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(uri: &str, signed_by: &str) -> Configured {
        Configured {
            uri: uri.to_owned(),
            signed_by: Some(signed_by.to_owned()),
        }
    }

    #[test]
    fn wrong_mirror_variable_is_an_error_with_the_reason() {
        let wrong = [
            ("ftp://mirror.example/debian", UriError::Scheme),
            ("mirror.example/debian", UriError::Scheme),
            ("http:///debian", UriError::NoHost),
            ("file:debian", UriError::RelativePath),
        ];
        let characters = [
            ' ', '\t', '\n', '\0', '[', ']', '(', '<', '"', '\'', '`', '#', 'é',
        ];
        let with = characters.map(|character| {
            let uri = format!("http://mirror.example/{character}debian");
            (uri, UriError::Character { character })
        });
        let wrong = wrong.map(|(uri, error)| (uri.to_owned(), error));
        for (uri, reason) in wrong.into_iter().chain(with) {
            let error = chosen(Ok(uri.clone())).expect_err(&uri);
            let text = error.to_string();
            assert!(text.contains(VARIABLE), "{text}");
            assert!(text.contains(&reason.to_string()), "{text}");
        }
        let error = chosen(Err(VarError::NotUnicode("\u{fffd}".into()))).expect_err("not UTF-8");
        assert!(error.to_string().contains(VARIABLE), "{error}");
    }

    #[test]
    fn mirror_variable_with_http_https_or_file_is_the_only_mirror() {
        assert_eq!(chosen(Err(VarError::NotPresent)), Ok(None));
        assert_eq!(chosen(Ok(String::new())), Ok(None));
        for uri in [
            "http://mirror.example:8080/debian",
            "https://user:p%20w@mirror.example/debian",
            "file:/srv/debian",
            "file:///srv/debian",
        ] {
            let chosen = chosen(Ok(uri.to_owned())).expect(uri);
            let system = system("http://a/debian", "/a.gpg");
            let mirrors = choose(chosen, Some(system), Some(DEFAULT), Some("/d.gpg")).expect(uri);
            let [mirror] = &*mirrors else {
                panic!("{mirrors:?}");
            };
            let line = format!("deb [signed-by=/d.gpg] {uri} sid main\n");
            assert_eq!(mirror.source_line("sid"), line);
        }
    }

    #[test]
    fn missing_debian_keyring_is_an_error_that_names_the_package() {
        for (chosen, system) in [
            (Some("http://a/debian".to_owned()), None),
            (None, Some(Configured::new("http://a/debian", None))),
            (None, None),
        ] {
            let error = choose(chosen, system, None, None).expect_err("no keyring");
            assert!(
                error.to_string().contains("debian-archive-keyring"),
                "{error}"
            );
        }
    }

    #[test]
    fn keyring_of_the_systems_entry_is_used_for_its_mirror_only() {
        let chosen = |debian_keyring| {
            let system = system("http://a/debian", "/a.gpg");
            let mirrors = choose(None, Some(system), Some("http://b/debian"), debian_keyring);
            let line = |mirror: &Mirror| mirror.source_line("sid");
            mirrors
                .expect("mirrors")
                .iter()
                .map(line)
                .collect::<Vec<_>>()
        };
        let lines = [
            "deb [signed-by=/a.gpg] http://a/debian sid main\n",
            "deb [signed-by=/d.gpg] http://b/debian sid main\n",
        ];
        assert_eq!(chosen(Some("/d.gpg")), lines);
        assert_eq!(chosen(None), lines[..1]);
    }

    #[test]
    fn wrong_archive_of_the_catalog_is_an_error() {
        let error = choose(
            None,
            None,
            Some("http://b/debian [trusted=yes]"),
            Some("/d.gpg"),
        );
        assert!(matches!(error, Err(MirrorError::Archive { .. })));
    }
}
