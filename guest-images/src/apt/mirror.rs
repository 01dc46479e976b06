//! Which Debian mirror to use: the one that the system's apt is configured with, so that a
//! mirror near by, or the only one reachable, is the one that is asked.

use std::fs;
use std::path::{Path, PathBuf};

const DEFAULT: &str = "http://deb.debian.org/debian";
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
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
];

/// A Debian mirror and what its lists are signed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) uri: String,
    keyring: Option<PathBuf>,
}

impl Mirror {
    fn new(uri: &str, keyring: Option<&str>) -> Self {
        let keyring = keyring
            .filter(|path| path.starts_with('/'))
            .or_else(|| KEYRINGS.into_iter().find(|path| Path::new(path).is_file()));
        Self {
            uri: uri.trim_end_matches('/').to_owned(),
            keyring: keyring.map(PathBuf::from),
        }
    }

    /// The line of `sources.list` for `suite` on this mirror.
    pub(crate) fn source_line(&self, suite: &str) -> String {
        let options = match &self.keyring {
            Some(keyring) => format!("[signed-by={}] ", keyring.display()),
            None => String::new(),
        };
        format!("deb {options}{} {suite} main\n", self.uri)
    }
}

/// The mirrors to try, best first: `$HYPROBE_MIRROR` alone if it is set; else the system's,
/// then `archive`.
pub(crate) fn mirrors(archive: Option<&str>) -> Vec<Mirror> {
    if let Some(uri) = std::env::var("HYPROBE_MIRROR")
        .ok()
        .filter(|uri| !uri.is_empty())
    {
        return vec![Mirror::new(&uri, None)];
    }
    let system = configured(Path::new("/etc/apt")).unwrap_or_else(|| Mirror::new(DEFAULT, None));
    std::iter::once(system)
        .chain(archive.map(|uri| Mirror::new(uri, None)))
        .collect()
}

fn configured(etc: &Path) -> Option<Mirror> {
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
fn from_line(line: &str) -> Option<Mirror> {
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
    is_debian(uri, suite, words).then(|| Mirror::new(uri, keyring))
}

/// Splits a deb822 file into stanzas without comments.
fn stanzas(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines
        .split(|line| line.trim().is_empty())
        .map(<[&str]>::to_vec)
        .collect()
}

fn from_stanza(stanza: &[&str]) -> Option<Mirror> {
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
        .map(|uri| Mirror::new(uri, field("Signed-By")))
}

/// Whether this is Debian itself and not a third party's packages for it.
fn is_debian<'a>(uri: &str, suite: &str, mut components: impl Iterator<Item = &'a str>) -> bool {
    (uri.starts_with("http://") || uri.starts_with("https://"))
        && uri.contains("debian")
        && SUITES.contains(&suite)
        && components.any(|component| component == "main")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_sources() {
        let line = "deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian/ trixie main";
        let mirror = from_line(line).expect("mirror");
        assert_eq!(
            mirror.source_line("sid"),
            "deb [signed-by=/k.gpg] https://mirror.example/debian sid main\n"
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
        let text = "Types: deb\nURIs: https://deb.nodesource.com/node_20.x\nSuites: nodistro\n\
                    Components: main\n\nTypes: deb deb-src\n# a comment\nURIs: http://a/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /k.gpg\n";
        let all = stanzas(text);
        let found: Vec<_> = all
            .iter()
            .filter_map(|stanza| from_stanza(stanza))
            .collect();
        assert_eq!(found, [Mirror::new("http://a/debian", Some("/k.gpg"))]);
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
