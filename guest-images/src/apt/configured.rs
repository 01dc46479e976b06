//! The Debian mirror in the system's configuration of apt.

use std::fs;
use std::path::{Path, PathBuf};

const SUITES: [&str; 10] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// A mirror in the system's configuration of apt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Configured {
    pub(super) uri: String,
    /// The keyring of the entry.
    pub(super) signed_by: Option<String>,
}

impl Configured {
    pub(super) fn new(uri: &str, signed_by: Option<&str>) -> Self {
        Self {
            uri: uri.to_owned(),
            signed_by: signed_by.and_then(keyring_files),
        }
    }
}

/// The keyring files in the value of `Signed-By`; `None` if a file does not exist, and for a fingerprint or an embedded key.
fn keyring_files(signed_by: &str) -> Option<String> {
    let files: Vec<_> = signed_by
        .split([',', ' ', '\t'])
        .filter(|file| !file.is_empty())
        .collect();
    let is_keyring = |file: &&str| {
        file.starts_with('/') && !file.contains(['[', ']']) && Path::new(file).is_file()
    };
    (!files.is_empty() && files.iter().all(is_keyring)).then(|| files.join(","))
}

/// The first Debian mirror in the sources below `etc`, apt's directory.
pub(super) fn configured(etc: &Path) -> Option<Configured> {
    let mut files: Vec<PathBuf> = fs::read_dir(etc.join("sources.list.d"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    files.sort();
    std::iter::once(etc.join("sources.list"))
        .chain(files)
        .find_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            match path.extension()?.to_str()? {
                "list" => text.lines().find_map(from_line),
                "sources" => stanzas(&text).iter().find_map(|stanza| from_stanza(stanza)),
                _ => None,
            }
        })
}

/// Reads `deb [options] uri suite component…`.
fn from_line(line: &str) -> Option<Configured> {
    let rest = line.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let keyring = options
        .split_whitespace()
        .find_map(|option| option.strip_prefix("signed-by="));
    is_debian(uri, suite, words).then(|| Configured::new(uri, keyring))
}

/// Splits a deb822 file into stanzas without comments.
fn stanzas(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines
        .split(|line| line.trim().is_empty())
        .map(<[&str]>::to_vec)
        .collect()
}

fn from_stanza(stanza: &[&str]) -> Option<Configured> {
    let field = |name: &str| {
        stanza.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    };
    if field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"))
        || !field("Types")?.split_whitespace().any(|kind| kind == "deb")
    {
        return None;
    }
    let components = field("Components")?;
    let suites = field("Suites")?;
    field("URIs")?
        .split_whitespace()
        .find(|uri| {
            suites
                .split_whitespace()
                .any(|suite| is_debian(uri, suite, components.split_whitespace()))
        })
        .map(|uri| Configured::new(uri, field("Signed-By")))
}

/// Whether the entry is Debian itself, not a third party's packages for Debian.
fn is_debian<'a>(uri: &str, suite: &str, mut components: impl Iterator<Item = &'a str>) -> bool {
    (uri.starts_with("http://") || uri.starts_with("https://"))
        && uri.contains("debian")
        && SUITES.contains(&suite)
        && components.any(|component| component == "main")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keyring's file.
    fn keyring() -> (tempfile::NamedTempFile, String) {
        let file = tempfile::NamedTempFile::new().expect("tempfile");
        let path = file.path().to_str().expect("path").to_owned();
        (file, path)
    }

    fn system(uri: &str, signed_by: &str) -> Configured {
        Configured {
            uri: uri.to_owned(),
            signed_by: Some(signed_by.to_owned()),
        }
    }

    #[test]
    fn signed_by_counts_only_if_it_names_existing_files() {
        let (_file, path) = keyring();
        assert_eq!(keyring_files(&path).as_deref(), Some(&*path));
        let two = format!("{path}, {path}");
        assert_eq!(keyring_files(&two), Some(format!("{path},{path}")));
        for other in ["", "/nonexistent.gpg", "0E98404D386FA1D9", "key.gpg"] {
            assert_eq!(keyring_files(other), None, "{other}");
        }
    }

    #[test]
    fn one_line_sources() {
        let (_file, path) = keyring();
        let line =
            format!("deb [arch=amd64 signed-by={path}] https://mirror.example/debian/ trixie main");
        assert_eq!(
            from_line(&line),
            Some(system("https://mirror.example/debian/", &path))
        );
        for other in [
            "# deb http://deb.debian.org/debian sid main",
            "deb-src http://deb.debian.org/debian sid main",
            "deb http://deb.debian.org/debian-security bookworm-security main",
            "deb https://download.docker.com/linux/debian bookworm stable",
            "deb https://apt.grafana.com stable main",
            "deb cdrom:[Debian] bookworm main",
            "deb",
        ] {
            assert_eq!(from_line(other), None, "{other}");
        }
    }

    #[test]
    fn deb822_sources() {
        let (_file, path) = keyring();
        let text = "Types: deb\nURIs: https://deb.nodesource.com/node_20.x\nSuites: nodistro\n\
                    Components: main\n\nTypes: deb deb-src\n# a comment\nURIs: http://a/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: KEYRING\n";
        let text = text.replace("KEYRING", &path);
        let all = stanzas(&text);
        let found: Vec<_> = all
            .iter()
            .filter_map(|stanza| from_stanza(stanza))
            .collect();
        assert_eq!(found, [system("http://a/debian", &path)]);
        let off = text.replace("Types: deb deb-src", "Enabled: no\nTypes: deb");
        assert!(
            stanzas(&off)
                .iter()
                .all(|stanza| from_stanza(stanza).is_none())
        );
    }

    #[test]
    fn the_first_of_the_configured_ones_is_used() {
        let etc = tempfile::tempdir().expect("tempdir");
        assert_eq!(configured(etc.path()), None);
        fs::create_dir(etc.path().join("sources.list.d")).expect("mkdir");
        let write = |name: &str, uri: &str| {
            let text = format!("deb {uri} bookworm main\n");
            fs::write(etc.path().join("sources.list.d").join(name), text).expect("write");
        };
        write("c.list", "http://c/debian");
        write("b.list", "http://b/debian");
        write("a.list.off", "http://a/debian");
        assert_eq!(
            configured(etc.path()).expect("mirror").uri,
            "http://b/debian"
        );
    }
}
