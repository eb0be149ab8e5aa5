//! Values by kind: from TOML, from text (environment, flags, defaults), and back to TOML.
//!
//! Both ways in give the same [`Value`]s, so the conversion to typed settings sees no difference
//! between a file and a flag. Text forms are the ones of the file without quotes, with lists comma
//! separated.

use super::keys::{Kind, Step};
use super::problem::echo;
use super::transport::Listen;
use super::url::SOCKET_PATH_MAX;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use toml::de::DeValue;

/// Longest item of a list, longest label and label's value, in bytes.
pub(super) const ITEM_BYTES_MAX: usize = 256;

/// Most labels of a worker: each is compared with what requests require.
const LABELS_MAX: usize = 64;

/// A value of some [`Kind`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(u64),
    Float(f64),
    Duration(Duration),
    /// The word `off` where a duration may stand.
    Off,
    /// Empty text where a duration may stand.
    Empty,
    /// Bytes.
    Size(u64),
    Listen(Listen),
    Text(String),
    List(Vec<String>),
    /// A word of a [`Kind::Choice`].
    Word(&'static str),
    Labels(BTreeMap<String, String>),
    Json(serde_json::Map<String, serde_json::Value>),
}

/// Why something is not a value of its kind. Both texts are parts of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// What is wrong with it, and what to write.
    Wrong(String, String),
    /// It would be a value, were it built; and what to write until then.
    NotBuilt(Step, String),
}

fn wrong(what: impl Into<String>, mend: impl Into<String>) -> Misfit {
    Misfit::Wrong(what.into(), mend.into())
}

/// Reads bare text.
pub(super) fn from_text(kind: &Kind, text: &str) -> Result<Value, Misfit> {
    match *kind {
        Kind::Bool => match text {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            _ => Err(wrong("is neither true nor false", "write true or false")),
        },
        Kind::Int { min, max } => {
            let digits = text.replace('_', "");
            let number = digits.parse::<u64>().ok().filter(|n| (min..=max).contains(n));
            number.map(Value::Int).ok_or_else(|| out_of_range(min, max))
        }
        Kind::Float { min, max } => match text.parse::<f64>() {
            Ok(number) if number >= min && number <= max => Ok(Value::Float(number)),
            _ => Err(wrong(
                format!("is not a number from {min} to {max}"),
                format!("write a number from {min} to {max}"),
            )),
        },
        Kind::Duration { off: true, .. } if text == "off" => Ok(Value::Off),
        Kind::Duration { empty: true, .. } if text.is_empty() => Ok(Value::Empty),
        Kind::Duration { min, max, off, empty } => duration(text, min, max, &or_words(off, empty)),
        Kind::Size { min, max } => size(text, min, max),
        Kind::Listen { unix } => listen(text, unix),
        Kind::Text { max } => plain(text, max).map(|()| Value::Text(text.to_owned())),
        Kind::Port => port(text),
        Kind::List { max } => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            list(items.map(str::to_owned).collect(), max)
        }
        Kind::Choice { built, later } => choice(text, built, later),
        Kind::Labels | Kind::Json if text.is_empty() => Ok(empty_table(kind)),
        Kind::Labels | Kind::Json => {
            Err(wrong("is a table, which text can't express", "set it in the file"))
        }
    }
}

/// Reads a value of the file.
pub(super) fn from_toml(kind: &Kind, value: &DeValue<'_>) -> Result<Value, Misfit> {
    match (kind, value) {
        (Kind::Bool, DeValue::Boolean(yes)) => Ok(Value::Bool(*yes)),
        (Kind::Int { min, max }, DeValue::Integer(number)) => {
            let number = u64::from_str_radix(number.as_str(), number.radix()).ok();
            let number = number.filter(|n| (*min..=*max).contains(n));
            number.map(Value::Int).ok_or_else(|| out_of_range(*min, *max))
        }
        (Kind::Port, DeValue::Integer(number)) if number.radix() == 10 => {
            from_text(kind, number.as_str())
        }
        (Kind::Float { .. }, DeValue::Float(number)) => from_text(kind, number.as_str()),
        (Kind::Float { .. }, DeValue::Integer(number)) if number.radix() == 10 => {
            from_text(kind, number.as_str())
        }
        (Kind::Size { .. }, DeValue::Integer(bytes)) if bytes.radix() == 10 => {
            from_text(kind, bytes.as_str())
        }
        (Kind::Duration { .. }, DeValue::Integer(_) | DeValue::Float(_)) => {
            Err(wrong("is a duration without its unit", "write it with one, e.g. \"30s\""))
        }
        (
            Kind::Duration { .. }
            | Kind::Size { .. }
            | Kind::Listen { .. }
            | Kind::Text { .. }
            | Kind::Port
            | Kind::Choice { .. },
            DeValue::String(text),
        ) => from_text(kind, text),
        (Kind::List { max }, DeValue::Array(items)) => {
            let texts: Option<Vec<String>> =
                items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
            let texts = texts.ok_or_else(|| {
                wrong("has an item that is not text", "write a list of quoted texts")
            })?;
            list(texts, *max)
        }
        (Kind::Labels, DeValue::Table(table)) => labels(table),
        (Kind::Json, DeValue::Table(table)) => {
            let json = table.iter().map(|(key, value)| {
                json(value.get_ref()).map(|value| (key.get_ref().to_string(), value))
            });
            json.collect::<Result<_, _>>().map(Value::Json)
        }
        _ => Err(wrong(
            format!("is of type {}, not {}", value.type_str(), describe(kind)),
            format!("write {}", example(kind)),
        )),
    }
}

/// A number of a port, or a name as Kubernetes gives them to ports.
fn port(text: &str) -> Result<Value, Misfit> {
    let is_number = text.parse::<u16>().is_ok_and(|port| port != 0);
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=63).contains(&text.len())
        && text.bytes().all(fits)
        && text.bytes().any(|b| b.is_ascii_lowercase());
    if is_number || is_name {
        return Ok(Value::Text(text.to_owned()));
    }
    Err(wrong("is neither a port nor a name of one", format!("write {}", example(&Kind::Port))))
}

fn out_of_range(min: u64, max: u64) -> Misfit {
    wrong(
        format!("is not a whole number from {min} to {max}"),
        format!("write a whole number from {min} to {max}"),
    )
}

/// What else may stand where a duration does, as the end of a sentence.
fn or_words(off: bool, empty: bool) -> String {
    let off = if off { ", or \"off\"" } else { "" };
    let empty = if empty { ", or \"\"" } else { "" };
    format!("{off}{empty}")
}

fn duration(text: &str, min: Duration, max: Duration, or: &str) -> Result<Value, Misfit> {
    let range =
        format!("{} to {}", humantime::format_duration(min), humantime::format_duration(max));
    match humantime::parse_duration(text) {
        Ok(span) if span >= min && span <= max => Ok(Value::Duration(span)),
        Ok(_) => Err(wrong(
            format!("is not within {range}"),
            format!("write a duration from {range}{or}"),
        )),
        Err(_) => Err(wrong(
            "is not a duration",
            format!("write a number with its unit, e.g. \"30s\" or \"1h 30m\", from {range}{or}"),
        )),
    }
}

/// The units of sizes; the first of each kind is the one that is printed.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

fn size(text: &str, min: u64, max: u64) -> Result<Value, Misfit> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = if unit.is_empty() { "B" } else { unit.trim_start() };
    let scale = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bytes = number.parse::<u64>().ok().zip(scale).and_then(|(n, s)| n.checked_mul(s.1));
    let range = format!("{} to {}", size_text(min), size_text(max));
    match bytes {
        Some(bytes) if (min..=max).contains(&bytes) => Ok(Value::Size(bytes)),
        Some(_) => {
            Err(wrong(format!("is not within {range}"), format!("write a size from {range}")))
        }
        None => Err(wrong(
            "is not a size",
            format!("write a whole number with its unit, e.g. \"32MiB\", from {range}"),
        )),
    }
}

/// A size in the largest binary unit that divides it.
pub(super) fn size_text(bytes: u64) -> String {
    let whole = |scale: u64| bytes >= scale && bytes.is_multiple_of(scale);
    match SIZE_UNITS[..3].iter().find(|(_, scale)| whole(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => format!("{bytes}B"),
    }
}

fn listen(text: &str, unix: bool) -> Result<Value, Misfit> {
    let mend = match unix {
        true => "write an IP address and a port, e.g. \"127.0.0.1:8080\", or \"unix:/path\"",
        false => "write an IP address and a port, e.g. \"127.0.0.1:8080\"",
    };
    let Some(path) = text.strip_prefix("unix:").filter(|_| unix) else {
        let address = text.parse().map(|address| Value::Listen(Listen::Tcp(address)));
        return address.map_err(|_| wrong("is not an address to listen on", mend));
    };
    plain(path, SOCKET_PATH_MAX)?;
    if !Path::new(path).is_absolute() || path.ends_with('/') {
        return Err(wrong("is not the absolute path of a socket", mend));
    }
    Ok(Value::Listen(Listen::Unix(path.into())))
}

fn plain(text: &str, max: usize) -> Result<(), Misfit> {
    if text.len() > max {
        return Err(wrong(format!("is longer than {max} bytes"), "shorten it"));
    }
    if text.chars().any(char::is_control) {
        return Err(wrong("contains a control character", "remove it"));
    }
    Ok(())
}

fn list(items: Vec<String>, max: usize) -> Result<Value, Misfit> {
    if items.len() > max {
        return Err(wrong(format!("has more than {max} items"), "shorten the list"));
    }
    for item in &items {
        plain(item, ITEM_BYTES_MAX)?;
        // A comma could not be written in the environment, and no list has items with one.
        if item.trim() != item || item.is_empty() || item.contains(',') {
            return Err(wrong(
                format!("has the item \"{}\"", echo(item)),
                "write items that are not empty, without commas and outer spaces",
            ));
        }
    }
    Ok(Value::List(items))
}

fn choice(
    text: &str,
    built: &'static [&'static str],
    later: &'static [(&'static str, Step)],
) -> Result<Value, Misfit> {
    if let Some(word) = built.iter().find(|word| **word == text) {
        return Ok(Value::Word(word));
    }
    let words = format!("write {}", one_of(built));
    match later.iter().find(|(word, _)| *word == text) {
        Some((_, step)) => Err(Misfit::NotBuilt(*step, words)),
        None => Err(wrong("is not one of its words", words)),
    }
}

fn labels(table: &toml::de::DeTable<'_>) -> Result<Value, Misfit> {
    if table.len() > LABELS_MAX {
        return Err(wrong(format!("has more than {LABELS_MAX} labels"), "remove some"));
    }
    // Requests name labels as `zone=a,gpu=h200`.
    let clean = |text: &str| {
        (1..=ITEM_BYTES_MAX).contains(&text.len())
            && text.trim() == text
            && !text.contains(|c: char| c == ',' || c == '=' || c.is_control())
    };
    let mut labels = BTreeMap::new();
    for (key, value) in table {
        let (key, value) = (key.get_ref(), value.get_ref().as_str());
        let Some(value) = value.filter(|value| clean(value) && clean(key)) else {
            return Err(wrong(
                format!("has a bad label \"{}\"", echo(key)),
                format!(
                    "write names and quoted values of 1 to {ITEM_BYTES_MAX} bytes without comma, \
                     equals sign and outer spaces"
                ),
            ));
        };
        labels.insert(key.to_string(), value.to_owned());
    }
    Ok(Value::Labels(labels))
}

fn json(value: &DeValue<'_>) -> Result<serde_json::Value, Misfit> {
    use serde_json::Value as Json;
    let unfit = || {
        wrong(
            "holds a number, date or time that JSON has no form for",
            "write text, finite numbers of 64 bits, true, false, lists and tables",
        )
    };
    Ok(match value {
        DeValue::String(text) => Json::String(text.to_string()),
        DeValue::Integer(n) => {
            i64::from_str_radix(n.as_str(), n.radix()).map(Json::from).map_err(|_| unfit())?
        }
        DeValue::Float(n) => {
            let number = n.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            Json::Number(number.ok_or_else(unfit)?)
        }
        DeValue::Boolean(yes) => Json::Bool(*yes),
        DeValue::Datetime(_) => return Err(unfit()),
        DeValue::Array(items) => {
            Json::Array(items.iter().map(|item| json(item.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => Json::Object(
            table
                .iter()
                .map(|(key, value)| Ok((key.get_ref().to_string(), json(value.get_ref())?)))
                .collect::<Result<_, _>>()?,
        ),
    })
}

fn empty_table(kind: &Kind) -> Value {
    match kind {
        Kind::Labels => Value::Labels(BTreeMap::new()),
        _ => Value::Json(serde_json::Map::new()),
    }
}

/// What a kind is, for messages and the reference page.
pub(super) fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Int { min, max } => format!("a whole number, {min} to {max}"),
        Kind::Float { min, max } => format!("a number, {min} to {max}"),
        Kind::Duration { min, max, off, empty } => format!(
            "a duration, {} to {}{}",
            humantime::format_duration(*min),
            humantime::format_duration(*max),
            or_words(*off, *empty)
        ),
        Kind::Size { min, max } => format!("a size, {} to {}", size_text(*min), size_text(*max)),
        Kind::Listen { unix: false } => "an address to listen on".to_owned(),
        Kind::Listen { unix: true } => "an address to listen on, or `unix:/path`".to_owned(),
        Kind::Text { max } => format!("text, at most {max} bytes"),
        Kind::Port => "a port, or its name".to_owned(),
        Kind::List { max } => format!("a list of texts, at most {max}"),
        Kind::Choice { built, .. } => one_of(built),
        Kind::Labels => "a table of texts".to_owned(),
        Kind::Json => "a table".to_owned(),
    }
}

fn example(kind: &Kind) -> String {
    match kind {
        Kind::Listen { .. } => "text such as \"127.0.0.1:8080\"".to_owned(),
        Kind::Duration { .. } => "text such as \"30s\"".to_owned(),
        Kind::Size { .. } => "text such as \"32MiB\"".to_owned(),
        Kind::List { .. } => "a list such as [\"a\", \"b\"]".to_owned(),
        Kind::Labels | Kind::Json => "a table such as { zone = \"a\" }".to_owned(),
        Kind::Text { .. } => "it in quotes".to_owned(),
        Kind::Port => "a number from 1 to 65535, or a name such as \"http\"".to_owned(),
        other => describe(other),
    }
}

fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

impl Value {
    /// The value as TOML on one line.
    pub(super) fn to_toml(&self) -> String {
        match self {
            Self::Bool(yes) => yes.to_string(),
            Self::Int(number) => number.to_string(),
            // Debug keeps the point of a whole number, which TOML asks for.
            Self::Float(number) => format!("{number:?}"),
            Self::Duration(span) => quote(&humantime::format_duration(*span).to_string()),
            Self::Off => quote("off"),
            Self::Empty => quote(""),
            Self::Size(bytes) => quote(&size_text(*bytes)),
            Self::Listen(address) => quote(&address.to_string()),
            Self::Text(text) => quote(text),
            Self::Word(word) => quote(word),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| quote(item)).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Labels(labels) => {
                inline_table(labels.iter().map(|(key, value)| (key.as_str(), quote(value))))
            }
            Self::Json(map) => json_table(map),
        }
    }
}

fn json_table(map: &serde_json::Map<String, serde_json::Value>) -> String {
    inline_table(map.iter().map(|(key, value)| (key.as_str(), json_toml(value))))
}

fn json_toml(value: &serde_json::Value) -> String {
    use serde_json::Value as Json;
    match value {
        Json::String(text) => quote(text),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(json_toml).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(map) => json_table(map),
        // Numbers and booleans look the same; null never comes from TOML.
        other => other.to_string(),
    }
}

fn inline_table<'a>(entries: impl Iterator<Item = (&'a str, String)>) -> String {
    let bare = |key: &str| {
        !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    let entries: Vec<String> = entries
        .map(|(key, value)| {
            let key = if bare(key) { key.to_owned() } else { quote(key) };
            format!("{key} = {value}")
        })
        .collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

/// A basic string. JSON's escapes are a subset of TOML's, but for DEL, which JSON leaves raw.
pub(super) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}
