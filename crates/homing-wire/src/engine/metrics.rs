//! Prometheus text as engines expose it, for the few figures that a router wants.
//!
//! A line that makes no sense is passed over: one odd line must not blind us to the rest. Nothing is
//! copied; labels are looked up in the text when asked for. The format is Prometheus' text exposition
//! format 0.0.4 (OpenMetrics' exemplars behind a value are passed over too).

use super::Histogram;
use std::borrow::Cow;

/// The most samples that are read of one answer; a busy engine has some hundred.
pub const MAX_SAMPLES: usize = 100_000;

/// One line: a name, labels, a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name, with suffixes such as `_total`.
    pub name: &'a str,
    /// What stands between the braces; empty if there are none.
    labels: &'a str,
    /// The value.
    pub value: f64,
}

/// All samples of an answer, in its order.
#[derive(Clone, Debug, Default)]
pub struct Exposition<'a> {
    samples: Vec<Sample<'a>>,
}

/// What vLLM says about its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks in GPU memory of one rank; `None` where it isn't known yet.
    pub num_gpu_blocks: Option<u64>,
}

impl<'a> Sample<'a> {
    /// The value of a label, its escapes resolved.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        loop {
            let (label, behind) = rest.split_once('=')?;
            let quoted = behind.trim_start().strip_prefix('"')?;
            let end = closing_quote(quoted)?;
            if label.trim() == name {
                return Some(unescape(&quoted[..end]));
            }
            rest = quoted[end + 1..].trim_start().strip_prefix(',')?.trim_start();
        }
    }

    /// Reads a line; `None` for comments and for what makes no sense.
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        let name_end = line.find(['{', ' ', '\t'])?;
        let (name, rest) = line.split_at(name_end);
        if name.is_empty() || name.starts_with('#') {
            return None;
        }
        let (labels, rest) = match rest.strip_prefix('{') {
            None => ("", rest),
            Some(inside) => {
                let end = closing_brace(inside)?;
                (&inside[..end], &inside[end + 1..])
            }
        };
        // `inf` and `nan` of any case are what Prometheus writes and Rust reads.
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }
}

impl<'a> Exposition<'a> {
    /// Reads an answer; what is beyond [`MAX_SAMPLES`] is left out.
    #[must_use]
    pub fn parse(text: &'a str) -> Self {
        Self { samples: text.lines().filter_map(Sample::parse).take(MAX_SAMPLES).collect() }
    }

    /// The samples of one name.
    pub fn samples(&self, name: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// The first value under a name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.samples(name).next().map(|sample| sample.value)
    }

    /// A gauge or counter summed over all its label sets (ranks, models); `None` if it isn't there.
    #[must_use]
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.samples(name).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// A histogram, added up over all its label sets; `name` without `_bucket`. `None` if it isn't there.
    #[must_use]
    pub fn histogram(&self, name: &str) -> Option<Histogram> {
        let mut histogram = Histogram::default();
        for sample in &self.samples {
            match sample.name.strip_prefix(name) {
                Some("_bucket") => {
                    let le = sample.label("le").and_then(|le| le.parse().ok());
                    le.into_iter().for_each(|le| histogram.add_bucket(le, sample.value));
                }
                Some("_sum") => histogram.sum += sample.value,
                _ => {}
            }
        }
        (!histogram.is_empty()).then_some(histogram)
    }

    /// When the process started: seconds since the Unix epoch. Another value means another process.
    #[must_use]
    pub fn process_start_time(&self) -> Option<f64> {
        self.value("process_start_time_seconds")
    }

    /// Prompt tokens that were found in the prefix cache, and those that were looked up there, since the
    /// engine began, over all its ranks: vLLM's `prefix_cache_hits` and `prefix_cache_queries`.
    #[must_use]
    pub fn prefix_cache(&self) -> Option<(u64, u64)> {
        let count = |name| self.sum(name).filter(|n| n.is_finite() && *n >= 0.0).map(|n| n as u64);
        Some((count("vllm:prefix_cache_hits_total")?, count("vllm:prefix_cache_queries_total")?))
    }

    /// `vllm:cache_config_info`, which carries its facts as labels.
    #[must_use]
    pub fn cache_config(&self) -> Option<CacheConfig> {
        self.samples("vllm:cache_config_info").find_map(|sample| {
            Some(CacheConfig {
                block_size: sample.label("block_size")?.parse().ok()?,
                num_gpu_blocks: sample.label("num_gpu_blocks").and_then(|n| n.parse().ok()),
            })
        })
    }
}

impl Exposition<'_> {
    /// Tokens that the KV cache of one rank has room for: vLLM's blocks, SGLang's
    /// `sglang:max_total_num_tokens`. `None` where the engine doesn't say.
    #[must_use]
    pub fn cache_tokens(&self) -> Option<u64> {
        let blocks = self
            .cache_config()
            .and_then(|config| config.num_gpu_blocks?.checked_mul(u64::from(config.block_size)));
        let tokens = || self.value("sglang:max_total_num_tokens").map(|tokens| tokens as u64);
        blocks.or_else(tokens).filter(|tokens| *tokens > 0)
    }
}

/// Where the quote that was opened before `text` closes.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

/// Where the brace that was opened before `text` closes; braces in quotes don't count.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        if byte == b'"' && !escaped {
            quoted = !quoted;
        }
        escaped = byte == b'\\' && quoted && !escaped;
        byte == b'}' && !quoted
    })
}

/// `\\`, `\"` and `\n`; a backslash before anything else stays.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.clone().next() } else { None }) {
            ('\\', Some(known @ ('\\' | '"' | 'n'))) => {
                chars.next();
                out.push(if known == 'n' { '\n' } else { known });
            }
            _ => out.push(c),
        }
    }
    Cow::Owned(out)
}
