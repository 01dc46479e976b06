//! hyprobe-guest-images.
