//! Fills the image cache: `fetch-guest-images [--refresh] [--all | NAME…]`.

use std::process::ExitCode;

use errors::chain;
use hyprobe_guest_images::{Fetched, Freshness, Store};

const USAGE: &str = "usage: fetch-guest-images [--refresh] [--all | NAME…]";

fn main() -> ExitCode {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let mut take = |flag: &str| {
        let before = names.len();
        names.retain(|argument| argument != flag);
        names.len() != before
    };
    let (all, refresh) = (take("--all"), take("--refresh"));
    if all != names.is_empty() || names.iter().any(|name| name.starts_with('-')) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let store = match Store::open() {
        Ok(store) => store,
        Err(error) => return fail(&error),
    };
    if all {
        names = store
            .catalog()
            .images()
            .filter(|image| image.fetched == Fetched::WithAll)
            .map(|image| image.name.clone())
            .collect();
    }
    let freshness = if refresh {
        Freshness::Newest
    } else {
        Freshness::Cached
    };
    let mut code = ExitCode::SUCCESS;
    for name in names {
        match store.fetch(&name, freshness, &|step| eprintln!("{step}")) {
            Ok(image) => println!(
                "{}\t{}\t{}",
                image.name,
                image.release(),
                image.path().display()
            ),
            Err(error) => code = fail(&error),
        }
    }
    code
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("fetch-guest-images: {}", chain(error));
    ExitCode::from(3)
}
