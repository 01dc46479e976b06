//! Prints `docs/openapi.json`: `cargo run -p hyprobe-control --example openapi > docs/openapi.json`.

fn main() -> Result<(), serde_json::Error> {
    println!(
        "{}",
        serde_json::to_string_pretty(&hyprobe_control::openapi())?
    );
    Ok(())
}
