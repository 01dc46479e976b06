//! Prints `docs/events.schema.json`: `cargo run -p hyprobe-events --features openapi --example schema > docs/events.schema.json`.

fn main() -> Result<(), serde_json::Error> {
    println!(
        "{}",
        serde_json::to_string_pretty(&hyprobe_events::event_schema()?)?
    );
    Ok(())
}
