//! debuginfod over HTTPS: a server with an authority of its own, which the user trusts by apt's configuration.
//!
//! The functions of the test guest's kernel are looked up in debug information that only the server has.

use std::fs;
use std::io::{self, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_images::build_testguest;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

/// A note with a build-id, as a linker writes it.
const NOTE: &[u8] = b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\xcd\0\0";
const PATH: &str = "/buildid/abcd/debuginfo";
/// A place that only debug information has.
const OF_KERNEL: &str = "[[probe]]\nat = 'kprobe:check:inlined'\n";

/// The answer to a request.
#[derive(Clone, Debug)]
enum Answer {
    File(Arc<Vec<u8>>),
    /// The path on this server, or an address.
    Redirect(String),
    /// The first bytes, and silence.
    Stall,
    NotFound,
}

impl Answer {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut head = |status: &str, fields: &str| {
            write!(to, "HTTP/1.1 {status}\r\n{fields}Connection: close\r\n\r\n")
        };
        match self {
            Self::File(bytes) => {
                head("200 OK", &format!("Content-Length: {}\r\n", bytes.len()))?;
                to.write_all(bytes)
            }
            Self::Redirect(target) => head(
                "302 Found",
                &format!("Location: {target}\r\nContent-Length: 0\r\n"),
            ),
            Self::Stall => {
                head("200 OK", "Content-Length: 1000\r\n")?;
                to.write_all(b"the beginning")?;
                to.flush()?;
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            }
            Self::NotFound => head("404 Not Found", "Content-Length: 0\r\n"),
        }
    }
}

/// A server of HTTPS, with answers by paths.
struct Server {
    address: String,
    authority: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answers: Vec<(&'static str, Answer)>) -> Self {
        let (config, authority) = certified();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, answers, seen) =
                    (Arc::clone(&config), answers.clone(), Arc::clone(&seen));
                // A client that breaks off is a part of some tests.
                std::thread::spawn(move || serve(stream, config, &answers, &seen));
            }
        });
        Self {
            address: format!("https://localhost:{port}"),
            authority,
            requests,
        }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    answers: &[(&str, Answer)],
    seen: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let mut request = [0; 4096];
    let len = stream.read(&mut request)?;
    let request = String::from_utf8_lossy(&request[..len]).into_owned();
    let wanted = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let answer = answers.iter().find(|(path, _)| *path == wanted);
    let answer = answer.map_or(Answer::NotFound, |(_, answer)| answer.clone());
    seen.lock().expect("no panic").push(wanted);
    answer.write(&mut stream)?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// A server's certificate for `localhost`, by a new authority. Returns the authority's certificate, too.
fn certified() -> (Arc<ServerConfig>, String) {
    let named = |names: &[&str], common: &str| {
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).expect("names");
        params.distinguished_name.push(DnType::CommonName, common);
        params
    };
    let mut of_authority = named(&[], "the authority of a test");
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    of_authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let key = KeyPair::generate().expect("a key");
    let authority = of_authority.self_signed(&key).expect("a certificate");
    let issuer = Issuer::new(of_authority, key);
    let key = KeyPair::generate().expect("a key");
    let of_server = named(&["localhost"], "localhost");
    let certificate = of_server.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a configuration");
    (Arc::new(config), authority.pem())
}

/// The end of `hyprobe check`.
#[derive(Debug)]
struct Checked {
    code: Option<i32>,
    text: String,
}

/// A kernel without debug information, and a manifest with a place that needs it.
struct Fixture {
    folder: TempDir,
    debug_file: Arc<Vec<u8>>,
}

impl Fixture {
    fn new(probe: &str) -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path();
        // The user of apt's sandbox reads the authority's certificate.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the own folder");
        build_testguest(path).expect("the test guest compiles");
        fs::write(path.join("note"), NOTE).expect("written");
        let manifest = format!("[guest]\nkernel = 'stripped'\nmemory = '64M'\n{probe}");
        fs::write(path.join("m.toml"), manifest).expect("written");
        let note = ["--add-section", ".note.gnu.build-id=note"];
        let binutils = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            let status = command.current_dir(path).args(arguments).status();
            assert!(status.expect(program).success(), "{program}");
        };
        binutils("objcopy", &[&note[..], &["testguest", "whole"]].concat());
        binutils("strip", &["-g", "-o", "stripped", "whole"]);
        let debug_file = Arc::new(fs::read(path.join("whole")).expect("read"));
        for name in ["whole", "testguest"] {
            fs::remove_file(path.join(name)).expect("removed");
        }
        Self { folder, debug_file }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Checks the manifest with `servers`. apt's configuration has the lines `settings`.
    fn check(&self, servers: &str, settings: &str) -> Checked {
        fs::write(self.path("apt.conf"), settings).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyprobe"));
        for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy).env_remove(proxy.to_uppercase());
        }
        let output = command
            .current_dir(self.folder.path())
            .args(["check", "m.toml"])
            .env("APT_CONFIG", self.path("apt.conf"))
            .env("DEBUGINFOD_URLS", servers)
            .env("DEBUGINFOD_CACHE_PATH", self.path("cache"))
            .env("HYPROBE_CACHE", self.path("images"))
            .output();
        let output = output.expect("the command starts");
        let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        Checked {
            code: output.status.code(),
            text: texts.concat(),
        }
    }

    /// The setting of apt by which the authority of `server` is trusted.
    fn trust(&self, server: &Server) -> String {
        let path = self.path("authority.pem");
        fs::write(&path, &server.authority).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("the own file");
        format!("Acquire::https::CAInfo \"{}\";\n", path.display())
    }

    fn is_cached(&self) -> bool {
        let is_empty = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut it| it.next().is_none());
        let cache = self.path("cache");
        cache.exists() && !is_empty(&cache)
    }
}

#[test]
fn debug_file_comes_over_https_from_a_server_whose_authority_apt_trusts_also_behind_a_redirect() {
    let fixture = Fixture::new(OF_KERNEL);
    let server = Server::start(vec![
        (PATH, Answer::Redirect("/elsewhere".to_owned())),
        ("/elsewhere", Answer::File(Arc::clone(&fixture.debug_file))),
    ]);
    let checked = fixture.check(&server.address, &fixture.trust(&server));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(fixture.is_cached());
    assert_eq!(server.requests(), [PATH, "/elsewhere"]);
}

#[test]
fn certificate_of_an_authority_that_is_not_trusted_is_refused_with_the_reason() {
    let fixture = Fixture::new(OF_KERNEL);
    let server = Server::start(vec![(PATH, Answer::File(Arc::clone(&fixture.debug_file)))]);
    let other = Server::start(Vec::new());
    for settings in [String::new(), fixture.trust(&other)] {
        let checked = fixture.check(&server.address, &settings);
        assert_eq!(checked.code, Some(2), "{checked:?}");
        for part in [
            &server.address,
            "the server's certificate is not trusted",
            "Acquire::https::CAInfo",
        ] {
            assert!(checked.text.contains(part), "{part}: {}", checked.text);
        }
        assert!(!fixture.is_cached() && server.requests().is_empty());
    }
}

#[test]
fn redirect_to_another_scheme_or_without_end_is_refused() {
    // A client that follows the redirect connects, whether or not the other server answers.
    let plain = TcpListener::bind("127.0.0.1:0").expect("a port");
    plain.set_nonblocking(true).expect("the own socket");
    let plain_file = format!("http://{}/file", plain.local_addr().expect("an address"));
    for target in [plain_file.as_str(), "file:///etc/passwd", PATH] {
        let fixture = Fixture::new(OF_KERNEL);
        let server = Server::start(vec![(PATH, Answer::Redirect(target.to_owned()))]);
        let settings = format!("{}Acquire::http::Timeout \"1\";\n", fixture.trust(&server));
        let checked = fixture.check(&server.address, &settings);
        assert_eq!(checked.code, Some(2), "{target}: {checked:?}");
        assert!(
            checked.text.contains(&server.address),
            "{target}: {checked:?}"
        );
        assert!(!fixture.is_cached(), "{target}");
    }
    let none = plain.accept().expect_err("no connection without TLS");
    assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn server_that_stalls_ends_the_download_with_its_name() {
    let fixture = Fixture::new(OF_KERNEL);
    let server = Server::start(vec![(PATH, Answer::Stall)]);
    // The user's limit for all downloads of apt, less than hyprobe's own.
    let settings = format!("{}Acquire::https::Timeout \"1\";\n", fixture.trust(&server));
    let checked = fixture.check(&server.address, &settings);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(checked.text.contains(&server.address), "{checked:?}");
    assert!(!fixture.is_cached());
}
