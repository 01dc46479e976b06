//! Checks that the description in `docs/` is identical to the served description.

use std::path::Path;

#[test]
fn the_committed_description_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let current = serde_json::to_string_pretty(&hyprobe_control::openapi()).expect("json") + "\n";
    assert!(
        committed == current,
        "write it anew: cargo run -p hyprobe-control --example openapi > docs/openapi.json"
    );
}

#[test]
fn every_path_is_described() {
    let description = serde_json::to_value(hyprobe_control::openapi()).expect("json");
    let paths = description["paths"].as_object().expect("paths");
    for path in [
        "/probes",
        "/probes/{id}",
        "/probes/{id}/stats",
        "/knobs",
        "/events",
        "/machine",
        "/machine/pause",
        "/machine/resume",
        "/machine/stop",
        "/symbols",
        "/memory",
        "/types",
        "/print",
        "/tasks",
        "/stacks",
        "/modules",
        "/log",
        "/percpu",
        "/metrics",
        "/openapi.json",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
}
