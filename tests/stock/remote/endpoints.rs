//! Every endpoint of the description, by `curl`, with right and with wrong requests.

use std::collections::BTreeSet;
use std::process::Command;

use control::limits;
use serde_json::{Value, json};

use super::Live;
use crate::boot::Stock;

struct Answer {
    status: u16,
    kind: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The body of a successful answer.
    fn good(&self) -> Value {
        assert!((200..300).contains(&self.status), "{}", self.text);
        self.json()
    }
}

/// Sends requests, and records the endpoints.
struct Curl<'l> {
    live: &'l Live,
    driven: BTreeSet<(String, String)>,
}

impl Curl<'_> {
    /// `path` may have a query behind the described path; `id` replaces `{id}`.
    fn ask(&mut self, method: &str, path: &str, id: &str, options: &[&str]) -> Answer {
        let described = path.split('?').next().unwrap_or_default().to_owned();
        self.driven.insert((method.to_lowercase(), described));
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "200"])
            .args(["--write-out", "\n%{http_code} %{content_type}"])
            .args(["--request", method, "--unix-socket"])
            .arg(&self.live.socket)
            .args(options)
            .arg(format!("http://x{}", path.replace("{id}", id)))
            .output()
            .expect("curl starts");
        let all = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        let (text, told) = all.rsplit_once('\n').expect("what is written out");
        let (status, kind) = told.split_once(' ').expect("a status");
        assert!(output.status.success(), "{method} {path}: {said}\n{all}");
        Answer {
            status: status.parse().expect("a status"),
            kind: kind.to_owned(),
            text: text.to_owned(),
        }
    }

    fn get(&mut self, path: &str) -> Value {
        self.ask("GET", path, "", &[]).good()
    }

    fn send(&mut self, method: &str, path: &str, id: &str, body: &Value) -> Value {
        let answer = self.ask(method, path, id, &["--data", &body.to_string()]);
        answer.good()
    }

    /// Asserts that the request is refused with `status` and the problem type `word`.
    fn refused(
        &mut self,
        (method, path, id): (&str, &str, &str),
        options: &[&str],
        (status, word): (u16, &str),
    ) -> Value {
        let answer = self.ask(method, path, id, options);
        let asked = format!("{method} {path} {options:?}");
        assert_eq!(answer.status, status, "{asked}: {}", answer.text);
        assert_eq!(answer.kind, "application/problem+json", "{asked}");
        let problem = answer.json();
        let expected = format!("urn:hyprobe:problem:{word}");
        assert_eq!(problem["type"], expected.as_str(), "{asked}");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        problem
    }
}

#[test]
fn every_endpoint_that_is_described() {
    let stock = Stock::fetch("debian-6.1");
    let live = Live::start(&stock);
    let mut curl = Curl {
        live: &live,
        driven: BTreeSet::new(),
    };
    let description = curl.get("/openapi.json");
    let machine = curl.get("/machine");
    assert_eq!(machine["state"], "running");
    let before = machine["pauses"]["count"].as_u64().expect("a number");

    probes(&mut curl);
    unknown_ids(&mut curl);
    bodies(&mut curl);
    knobs(&mut curl);
    looking(&mut curl);
    dumps(&mut curl);
    events(&mut curl);
    paused(&mut curl);

    // The statistics have the cost of changes.
    let pauses = &curl.get("/machine")["pauses"];
    assert!(pauses["count"].as_u64() > Some(before), "{pauses}");
    assert!(pauses["held_max_ns"].as_u64() > Some(0), "{pauses}");
    assert!(
        pauses["held_total_ns"].as_u64() > pauses["held_max_ns"].as_u64(),
        "{pauses}"
    );

    curl.send(
        "POST",
        "/probes",
        "",
        &json!([{"spec": "kprobe:vfs_read"}, {"spec": "kprobe:vfs_open"}]),
    );
    let removed = curl.ask("DELETE", "/probes", "", &[]).good();
    assert_eq!(removed["removed"], 2);
    curl.ask("POST", "/machine/stop", "", &[]).good();

    let paths = description["paths"].as_object().expect("paths");
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods").keys();
            methods.map(|method| (method.clone(), path.clone()))
        })
        .collect();
    assert_eq!(curl.driven, described);
    let ran = live.running.finish();
    ran.assert_well();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
}

fn probes(curl: &mut Curl<'_>) {
    let body = json!({"spec": "kprobe:vfs_read", "name": "reads"});
    let added = curl.send("POST", "/probes", "", &body);
    assert!(added["pause"]["held_ns"].as_u64() > Some(0), "{added}");
    let id = added["id"].to_string();
    // The pause of the answer is the last pause of the statistics.
    assert_eq!(curl.get("/machine")["pauses"]["last"], added["pause"]);

    let shown = curl.ask("GET", "/probes/{id}", &id, &[]).good();
    assert_eq!(shown["probes"][0]["name"], "reads", "{shown}");
    assert_eq!(shown["probes"][0]["state"], "armed", "{shown}");
    curl.send("PATCH", "/probes/{id}", "reads", &json!({"enabled": false}));
    let stats = |curl: &mut Curl<'_>| curl.ask("GET", "/probes/{id}/stats", "reads", &[]).good();
    assert_eq!(stats(curl)["probes"][0]["state"], "disabled");
    curl.send(
        "PATCH",
        "/probes/{id}",
        &id,
        &json!({"enabled": true, "name": "again"}),
    );
    assert_eq!(curl.get("/probes?limit=1")["probes"][0]["name"], "again");

    let taken = json!({"spec": "kprobe:vfs_open", "name": "again"}).to_string();
    curl.refused(
        ("POST", "/probes", ""),
        &["--data", &taken],
        (409, "name-taken"),
    );
    // All or nothing.
    let half = json!([{"spec": "kprobe:vfs_open"}, {"spec": "kprobe:vfs_opne"}]).to_string();
    let problem = curl.refused(
        ("POST", "/probes", ""),
        &["--data", &half],
        (422, "cannot-probe"),
    );
    assert_eq!(problem["pointer"], "/1/spec", "{problem}");
    assert_eq!(curl.get("/probes")["total"], 1);

    let removed = curl.ask("DELETE", "/probes/{id}", "again", &[]).good();
    assert_eq!(removed["probes"][0]["id"].to_string(), id, "{removed}");
    assert_eq!(curl.get("/probes")["total"], 0);
}

fn unknown_ids(curl: &mut Curl<'_>) {
    for id in ["999999", "nobody", "18446744073709551616", "%00"] {
        let unknown = (404, "no-such-probe");
        curl.refused(("GET", "/probes/{id}", id), &[], unknown);
        curl.refused(("GET", "/probes/{id}/stats", id), &[], unknown);
        curl.refused(("DELETE", "/probes/{id}", id), &[], unknown);
        let body = json!({"enabled": true}).to_string();
        curl.refused(("PATCH", "/probes/{id}", id), &["--data", &body], unknown);
    }
}

/// Sends bad bodies to each endpoint with a body.
fn bodies(curl: &mut Curl<'_>) {
    let id =
        curl.send("POST", "/probes", "", &json!({"spec": "kprobe:vfs_read"}))["id"].to_string();
    let folder = tempfile::tempdir().expect("tempdir");
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b' '; limits::BODY_BYTES + 1]).expect("written");
    let large = format!("@{}", large.display());
    let deep = "[".repeat(100_000);
    for asked in [
        ("POST", "/probes", ""),
        ("PATCH", "/probes/{id}", id.as_str()),
        ("PUT", "/knobs", ""),
    ] {
        let malformed = [
            "",
            "{",
            "7",
            "null",
            "\"x\"",
            "{\"spec\": 7}",
            "{\"enabled\": 7}",
            "{\"no\": 1}",
            &deep,
        ];
        for body in malformed {
            curl.refused(asked, &["--data", body], (400, "malformed"));
        }
        curl.refused(asked, &["--data-binary", &large], (413, "too-large"));
    }
    curl.refused(
        ("POST", "/probes", ""),
        &["--data", "[]"],
        (400, "malformed"),
    );
    let no_probe = ["--data", "{\"spec\": \"vfs_read\"}"];
    curl.refused(("POST", "/probes", ""), &no_probe, (422, "not-a-probe"));
    curl.ask("DELETE", "/probes/{id}", &id, &[]).good();
}

fn knobs(curl: &mut Curl<'_>) {
    assert_eq!(
        curl.send("PUT", "/knobs", "", &json!({"enabled": false}))["enabled"],
        false
    );
    assert_eq!(curl.get("/knobs")["enabled"], false);
    assert_eq!(
        curl.send("PUT", "/knobs", "", &json!({"enabled": true}))["enabled"],
        true
    );
    for wanted in [false, true] {
        let wanted = json!({"optimization": wanted});
        let set = curl.send("PUT", "/knobs", "", &wanted);
        assert_eq!(set["optimization"], wanted["optimization"]);
    }
}

/// Symbols, memory, views of the kernel, metrics.
fn looking(curl: &mut Curl<'_>) {
    let symbols = curl.get("/symbols?match=vfs_rea%3F");
    let address = symbols["symbols"][0]["address"]
        .as_str()
        .expect("vfs_read")
        .to_owned();
    let long = format!("/symbols?match={}", "x".repeat(257));
    curl.refused(("GET", &long, ""), &[], (400, "malformed"));

    let read = curl.get(&format!("/memory?gva={address}&len=16"));
    assert_eq!(read["bytes"].as_str().map(str::len), Some(32), "{read}");
    let read = curl.get("/memory?gpa=0x1000000&len=16&encoding=base64");
    assert_eq!(read["bytes"].as_str().map(str::len), Some(24), "{read}");
    curl.refused(
        ("GET", "/memory?gva=0x10&len=8", ""),
        &[],
        (422, "cannot-read"),
    );
    for wrong in ["gva=0x10", "gva=x&len=8", "gpa=0&len=65537", "gpa=0&len=-1"] {
        let path = format!("/memory?{wrong}");
        curl.refused(("GET", &path, ""), &[], (400, "malformed"));
    }
    for wrong in ["len=8", "gva=0x10&gpa=0x10&len=8"] {
        let path = format!("/memory?{wrong}");
        curl.refused(("GET", &path, ""), &[], (422, "contradictory"));
    }

    let declared = curl.get("/types?name=struct%20list_head");
    assert_eq!(declared["size"], 16, "{declared}");
    assert_eq!(declared["members"][1]["offset"], 8, "{declared}");
    let printed = curl.get("/print?expr=init_task.comm");
    assert_eq!(printed["value"], "swapper/0", "{printed}");
    let printed = curl.get("/print?expr=init_task&type=struct%20list_head&depth=1");
    assert_eq!(printed["type"], "struct list_head", "{printed}");
    for (wrong, word) in [
        ("/types?name=a.b", "not-an-expression"),
        ("/types?name=no_such_type", "cannot-evaluate"),
        ("/print?expr=init_task.", "not-an-expression"),
        ("/print?expr=init_task.no_such_member", "cannot-evaluate"),
        ("/print?expr=init_task&type=*", "not-an-expression"),
    ] {
        curl.refused(("GET", wrong, ""), &[], (422, word));
    }
    for wrong in [
        "/types",
        "/print",
        "/print?expr=0&depth=17",
        "/print?expr=0&depth=0",
    ] {
        curl.refused(("GET", wrong, ""), &[], (400, "malformed"));
    }
    let tasks = curl.get("/tasks?threads=true");
    assert!(tasks["pause"]["held_ns"].as_u64() > Some(0), "{tasks}");
    let is_init = |task: &Value| task["pid"] == 1 && task["ppid"] == 0;
    let tasks = tasks["tasks"].as_array().expect("an array");
    assert!(tasks.iter().any(is_init), "{tasks:?}");
    curl.refused(("GET", "/tasks?threads=x", ""), &[], (400, "malformed"));
    let stacks = curl.get("/stacks");
    assert!(stacks["pause"]["held_ns"].as_u64() > Some(0), "{stacks}");
    let vcpus = stacks["stacks"].as_array().expect("an array");
    assert_eq!(vcpus.len(), 2, "{vcpus:?}");
    let of_init = curl.get("/stacks?tid=1");
    assert_eq!(of_init["stacks"][0]["task"]["pid"], 1, "{of_init}");
    let two = ("GET", "/stacks?tid=1&all=true", "");
    curl.refused(two, &[], (422, "contradictory"));
    curl.refused(("GET", "/stacks?tid=77777", ""), &[], (404, "no-such-task"));
    assert_eq!(curl.get("/modules")["modules"], json!([]));
    let log = curl.get("/log");
    let first = log["records"][0]["text"].as_str();
    assert!(
        first.is_some_and(|text| text.starts_with("Linux version ")),
        "{first:?}"
    );

    let found = curl.get("/percpu?match=runqueue?");
    let queue = &found["variables"][0];
    assert_eq!(
        (&queue["name"], &queue["type"]),
        (&json!("runqueues"), &json!("struct rq"))
    );
    assert_eq!(queue["copies"].as_array().map(Vec::len), Some(2), "{queue}");
    let long = format!("/percpu?match={}", "x".repeat(257));
    curl.refused(("GET", &long, ""), &[], (400, "malformed"));
    let unknown = ("GET", "/percpu?match=no_such_variable", "");
    curl.refused(unknown, &[], (422, "cannot-evaluate"));

    let metrics = curl.ask("GET", "/metrics", "", &[]);
    assert_eq!(metrics.status, 200);
    for name in [
        "hyprobe_pauses_total ",
        "hyprobe_pause_seconds_total ",
        "hyprobe_pause_longest_seconds ",
    ] {
        let line = metrics
            .text
            .lines()
            .find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|value| value.parse::<f64>().ok());
        assert!(
            value.is_some_and(|value| value > 0.0),
            "{name}:\n{}",
            metrics.text
        );
    }
}

fn dumps(curl: &mut Curl<'_>) {
    let answer = curl.ask("GET", "/dump?form=sparse", "", &["--output", "/dev/null"]);
    let kind = "application/vnd.hyprobe.sparse-core";
    assert_eq!((answer.status, answer.kind.as_str()), (200, kind));
    let asked = ("GET", "/dump?pause_limit=0", "");
    curl.refused(asked, &[], (400, "malformed"));
}

fn events(curl: &mut Curl<'_>) {
    let id =
        curl.send("POST", "/probes", "", &json!({"spec": "kprobe:vfs_read"}))["id"].to_string();
    let sent = curl.ask("GET", "/events?limit=3", "", &["--no-buffer"]);
    assert!(sent.kind.starts_with("text/event-stream"), "{}", sent.kind);
    assert_eq!(
        sent.text.matches("\nevent: hit\n").count(),
        3,
        "{}",
        sent.text
    );
    let lines = ["--header", "Accept: application/x-ndjson"];
    let lines = curl.ask("GET", "/events?limit=3", "", &lines);
    assert_eq!(lines.kind, "application/x-ndjson");
    let seqs: Vec<u64> = lines
        .text
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("json")["seq"]
                .as_u64()
                .expect("a number")
        })
        .collect();
    assert!(
        matches!(seqs[..], [a, b, c] if b == a + 1 && c == b + 1),
        "{seqs:?}"
    );
    curl.refused(("GET", "/events?from=x", ""), &[], (400, "malformed"));
    curl.ask("DELETE", "/probes/{id}", &id, &[]).good();
}

fn paused(curl: &mut Curl<'_>) {
    assert_eq!(
        curl.ask("POST", "/machine/pause", "", &[]).good()["state"],
        "paused"
    );
    // The lasting pause is the only pause.
    let added = curl.send("POST", "/probes", "", &json!({"spec": "kprobe:vfs_read"}));
    assert_eq!(added["pause"]["held_ns"], 0, "{added}");
    curl.ask("DELETE", "/probes/{id}", &added["id"].to_string(), &[])
        .good();
    assert_eq!(
        curl.ask("POST", "/machine/resume", "", &[]).good()["state"],
        "running"
    );
}
