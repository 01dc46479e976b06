//! The options of `rig sweep`.

use clap::Args;

use super::Mode;

/// The default number of functions in a batch.
const BATCH: usize = 5000;
/// The kernels, in the order of the page's columns.
pub(super) const KERNELS: [&str; 6] = [
    "debian-5.10",
    "debian-6.1",
    "debian-6.12",
    "debian-sid",
    "debian-6.1-rt",
    "debian-6.12-rt",
];

/// Options of `rig sweep`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// With `sweep`: the modes, separated by commas; all without.
    #[arg(long, value_delimiter = ',')]
    pub modes: Vec<Mode>,
    /// With `sweep`: shuffles the functions and chooses instructions; a new one without, which is printed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// With `sweep`: vCPUs of the guest; each mode's own without.
    #[arg(long)]
    pub cpus: Option<u8>,
    /// With `sweep`: functions of a batch, at most.
    #[arg(long, default_value_t = BATCH)]
    pub batch: usize,
    /// With `sweep`: the number of functions to sweep instead of all, chosen by the seed. The page does not show samples.
    #[arg(long)]
    pub sample: Option<usize>,
    /// With `sweep`: functions to sweep first, separated by commas, where the kernel has them.
    #[arg(long, value_delimiter = ',')]
    pub with: Vec<String>,
    /// With `sweep`: no functions except the functions of `--with`.
    #[arg(long, requires = "with")]
    pub only_with: bool,
    /// With `sweep`: continues where the last run of the same mode ended, with the seed and the batches of the last run.
    #[arg(long)]
    pub resume: bool,
}

impl Options {
    /// Whether the page does not show the result.
    pub(super) fn is_sample(&self) -> bool {
        self.sample.is_some() || self.only_with
    }

    /// The modes to run.
    pub(super) fn modes(&self) -> &[Mode] {
        match self.modes.is_empty() {
            true => Mode::ALL,
            false => &self.modes,
        }
    }

    /// The arguments for the program beside KVM, except the mode.
    pub(super) fn arguments(&self, seed: u64) -> Vec<String> {
        let mut words = vec![
            "--seed".to_owned(),
            seed.to_string(),
            "--batch".to_owned(),
            self.batch.to_string(),
        ];
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        };
        option("--cpus", self.cpus.map(|cpus| cpus.to_string()));
        option("--sample", self.sample.map(|sample| sample.to_string()));
        option(
            "--with",
            (!self.with.is_empty()).then(|| self.with.join(",")),
        );
        if self.only_with {
            words.push("--only-with".to_owned());
        }
        words
    }
}
