use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::*;

/// A server with one file, which counts its requests.
pub(in crate::source_lines) struct Server {
    pub(in crate::source_lines) address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(in crate::source_lines) fn with_file(path: &str, contents: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (path, contents, seen) = (path.to_owned(), contents.to_vec(), Arc::clone(&requests));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                let len = stream.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..len]).into_owned();
                let wanted = request.split(' ').nth(1).unwrap_or_default().to_owned();
                let (status, body) = match wanted == path {
                    true => ("200 OK", &contents[..]),
                    false => ("404 Not Found", &[][..]),
                };
                seen.lock().expect("no panic").push(wanted);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream
                    .write_all(head.as_bytes())
                    .and_then(|()| stream.write_all(body));
            }
        });
        Self { address, requests }
    }

    pub(in crate::source_lines) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn request<'r>(build_id: &'r str, left_bytes: &'r Cell<u64>) -> FetchRequest<'r> {
    FetchRequest {
        build_id,
        limits: MODULE_LIMITS,
        left_bytes,
        say: &|_| {},
        is_wanted: &|| true,
    }
}

fn variables(pairs: &[(&str, &str)]) -> Option<Debuginfod> {
    let pairs: HashMap<&str, &str> = pairs.iter().copied().collect();
    Debuginfod::from_variables(|name| pairs.get(name).map(OsString::from))
}

#[test]
fn servers_and_cache_are_those_of_elfutils() {
    let home = ("HOME", "/home/me");
    let servers = ("DEBUGINFOD_URLS", " ima:enforcing http://a/ https://b/x ");
    assert_eq!(variables(&[home]), None);
    assert_eq!(variables(&[home, ("DEBUGINFOD_URLS", " ")]), None);
    let found = variables(&[home, servers]).expect("servers");
    assert_eq!(found.servers, ["http://a", "https://b/x"]);
    assert_eq!(
        found.cache,
        PathBuf::from("/home/me/.cache/debuginfod_client")
    );
    let found = variables(&[home, servers, ("XDG_CACHE_HOME", "/c")]).expect("servers");
    assert_eq!(found.cache, PathBuf::from("/c/debuginfod_client"));
    let found = variables(&[servers, ("DEBUGINFOD_CACHE_PATH", "/d")]).expect("servers");
    let expected = Path::new("/d/00ab/debuginfo");
    assert_eq!(found.place("00ab").as_deref(), Some(expected));
    for id in ["", "../../etc", "00/ab", "00 ab"] {
        assert_eq!(found.place(id), None, "{id}");
    }
}

#[test]
fn empty_file_in_the_cache_is_no_debug_file() {
    let cache = tempfile::tempdir().expect("tempdir");
    let debuginfod = Debuginfod::at(&["http://a"], cache.path());
    assert_eq!(debuginfod.cached("00ab"), None);
    let place = debuginfod.place("00ab").expect("a build-id");
    fs::create_dir(place.parent().expect("a folder")).expect("made");
    fs::write(&place, "").expect("written");
    assert_eq!(debuginfod.cached("00ab"), None);
    fs::write(&place, "contents").expect("written");
    assert_eq!(debuginfod.cached("00ab"), Some(place));
}

#[test]
fn file_of_the_first_server_that_has_it_comes_into_the_cache_after_its_check() {
    let cache = tempfile::tempdir().expect("tempdir");
    let empty = Server::with_file("/none", b"");
    let server = Server::with_file("/buildid/00ab/debuginfo", b"debug information");
    let left = Cell::new(1 << 20);
    let mut debuginfod = Debuginfod::at(&[&empty.address, &server.address], cache.path());
    let kept = cache.path().join("00ab/debuginfo");
    // The check fails: nothing is kept, not even the folder.
    let refused: Result<Option<()>, FetchFileError> =
        debuginfod.fetch(request("00ab", &left), |_| {
            Err(FetchFileError::Cache {
                folder: PathBuf::new(),
                source: io::ErrorKind::InvalidData.into(),
            })
        });
    assert!(refused.is_err() && !kept.parent().expect("a folder").exists());
    let said = RefCell::new(Vec::new());
    let read = |path: &Path| {
        fs::read(path).map_err(|source| FetchFileError::Cache {
            folder: path.to_owned(),
            source,
        })
    };
    let say = |text| said.borrow_mut().push(text);
    let loud = FetchRequest {
        say: &say,
        ..request("00ab", &left)
    };
    let fetched = debuginfod.fetch(loud, read);
    assert_eq!(
        fetched.expect("fetched").as_deref(),
        Some(&b"debug information"[..])
    );
    assert_eq!(fs::read(&kept).expect("kept"), b"debug information");
    assert_eq!(empty.requests(), ["/buildid/00ab/debuginfo"; 2]);
    let told = format!("asking {} for the debug information", server.address);
    assert!(said.borrow().contains(&told), "{said:?}");
    // No server has the file.
    let missing = debuginfod.fetch(request("ffff", &left), read);
    assert_eq!(missing.expect("no error"), None);
    assert!(!cache.path().join("ffff").exists());
    // The error has the build-id and the server.
    let mut closed = Debuginfod::at(&["http://127.0.0.1:1"], cache.path());
    let error = closed
        .fetch(request("eeee", &left), read)
        .expect_err("no server");
    let told = error.to_string();
    assert!(told.contains("eeee from http://127.0.0.1:1"), "{told}");
}
