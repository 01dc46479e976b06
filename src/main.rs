//! The `hyprobe` command.

fn main() -> std::process::ExitCode {
    hyprobe::main()
}
