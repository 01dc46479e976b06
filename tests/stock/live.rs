//! Probes that are added and removed while a stock guest runs.

use control::api::{AddProbe, AddProbes, ProblemKind};
use control::{Client, ClientError};

use crate::boot::{Boot, Running, Stock};

const SOCKET: &str = "x.sock";
/// The time limit of a run. In a nested run, a hit with fields may take longer than the guest's tick: then the guest takes minutes for the
/// work of a second.
const LIMIT: &str = "600s";
/// The guest's words before it waits for probes.
const READY: &str = "ready for probes";
/// The guest's word behind the wait.
const WOKEN: &str = "woken";

fn client(running: &Running) -> Client {
    Client::new(&running.folder().join(SOCKET)).expect("a client")
}

/// A run of `script` without probes.
pub(crate) fn start(stock: &Stock, script: &str) -> Running {
    Boot::with_script(stock, script)
        .option("--control", SOCKET)
        .option("--timeout", LIMIT)
        .start()
}

/// Pauses the guest behind [`READY`], lets `add` add probes, and resumes the guest.
pub(crate) fn add_when_ready(running: &mut Running, add: impl FnOnce(&Client)) {
    running.wait_for_console(READY);
    let client = client(running);
    // The guest's work waits for the probes.
    client.command("pause").expect("paused");
    assert!(
        !running.console().contains(WOKEN),
        "the host is too slow: the guest has not waited long enough for its probes"
    );
    add(&client);
    client.command("resume").expect("resumed");
}

/// A run of `script` with events of `probes` behind [`READY`]: with thousands of events, the boot would take minutes.
pub(crate) fn start_with_probes(stock: &Stock, script: &str, probes: &[String]) -> Running {
    let mut running = start(stock, script);
    add_when_ready(&mut running, |client| {
        let probes = probes.iter().map(|spec| AddProbe::new(spec.clone()));
        let added = client.add(&AddProbes::Many(probes.collect()));
        added.expect("all of them have a site");
    });
    running
}

/// Removes all probes behind the guest's words `text`: with events, the rest of the guest's work would be slow. A guest that has ended
/// already was fast enough.
pub(crate) fn remove_behind(running: &mut Running, text: &str) {
    running.wait_for_console(text);
    match client(running).remove_all() {
        Ok(_) | Err(ClientError::Connect { .. } | ClientError::Broken(_)) => {}
        Err(ClientError::Refused(refused)) if refused.is(ProblemKind::Ending) => {}
        Err(error) => panic!("{error}"),
    }
}
