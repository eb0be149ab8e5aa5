//! `/v1/embeddings`: for each input a vector that follows from its tokens, of length one. It means nothing; equal
//! inputs have equal vectors, and others have others. What it costs an engine is not modelled.

use super::ask::{check_model, parse};
use super::driver::Driver;
use super::model::Model;
use super::refusal::Refusal;
use homing_core::dice::{Dice as _, SplitMix};
use homing_core::hash::HashSpace;
use serde_json::{Value, json};

/// Inputs of one request, as OpenAI bounds them.
const INPUTS: usize = 2048;
/// Components, unless asked otherwise; and at most.
const USUAL: usize = 384;
const MOST: usize = 4096;

/// The answer to a request.
pub(super) fn embeddings(
    body: &[u8],
    id: &str,
    created: u64,
    served: &str,
    model: &Model,
    driver: &Driver,
) -> Result<Value, Refusal> {
    let body = parse(body)?;
    check_model(&body, served)?;
    let components = match &body["dimensions"] {
        Value::Null => USUAL,
        n => match n.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=MOST).contains(&n) => n,
            _ => return Err(Refusal::bad("dimensions", format!("dimensions must be 1 to {MOST}"))),
        },
    };
    let in_base64 = match &body["encoding_format"] {
        Value::Null => false,
        Value::String(word) if word == "float" => false,
        Value::String(word) if word == "base64" => true,
        _ => {
            let text = "encoding_format must be \"float\" or \"base64\"";
            return Err(Refusal::bad("encoding_format", text));
        }
    };
    let inputs = inputs(&body["input"], model)?;
    let limit = driver.max_model_len();
    if let Some(long) = inputs.iter().find(|tokens| tokens.len() > limit) {
        let text = format!(
            "the maximum context length is {limit} tokens, and an input has {}",
            long.len()
        );
        return Err(Refusal::bad("input", text));
    }
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let data: Vec<Value> = (0..)
        .zip(&inputs)
        .map(|(index, tokens): (usize, _)| {
            let vector = vector(tokens, components);
            let embedding = if in_base64 { json!(packed(&vector)) } else { json!(vector) };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0});
    Ok(json!({
        "id": id, "object": "list", "created": created, "model": served, "data": data, "usage": usage,
    }))
}

/// The tokens of each input: texts or token ids, one or several.
fn inputs(input: &Value, model: &Model) -> Result<Vec<Vec<u32>>, Refusal> {
    let bad = |text: &str| Refusal::bad("input", text);
    let ids = |all: &[Value]| -> Option<Vec<u32>> {
        all.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
    };
    let one = |input: &Value| match input {
        Value::String(text) if text.is_empty() => Err(bad("an input is empty")),
        Value::String(text) => Ok(model.text(text, true)?),
        Value::Array(all) => ids(all).ok_or_else(|| bad("input has what is no token id")),
        _ => Err(bad("input is neither text nor token ids")),
    };
    let all: Vec<Vec<u32>> = match input {
        Value::Array(all) if all.is_empty() => return Err(bad("input is empty")),
        Value::Array(all) if all.len() > INPUTS && !all[0].is_number() => {
            return Err(bad("input has more than 2048 entries"));
        }
        Value::Array(all) if !all[0].is_number() => {
            all.iter().map(one).collect::<Result<_, _>>()?
        }
        input => vec![one(input)?],
    };
    if all.iter().any(Vec::is_empty) {
        return Err(bad("an input is empty"));
    }
    Ok(all)
}

/// Of fewer components it is the beginning of that of more, but for its length, as of models that can be asked for both.
fn vector(tokens: &[u32], components: usize) -> Vec<f32> {
    let mut dice = SplitMix::new(HashSpace::default().local(tokens).0);
    let mut component = || dice.below(2001) as f32 / 1000.0 - 1.0;
    let raw: Vec<f32> = (0..components).map(|_| component()).collect();
    let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
    // All zero, once in a very long time.
    let length = if length > 0.0 { length } else { 1.0 };
    raw.iter().map(|x| x / length).collect()
}

/// As OpenAI packs them: 32 bits each, the low byte first, in base64.
fn packed(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one_follow_from_the_tokens_and_are_cut_short_in_front() {
        let (one, other) = (vector(&[1, 2], 64), vector(&[2, 1], 64));
        assert_eq!(one, vector(&[1, 2], 64));
        assert_ne!(one, other);
        let length = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
        assert!((length(&one) - 1.0).abs() < 1e-4);
        let short = vector(&[1, 2], 8);
        assert!((length(&short) - 1.0).abs() < 1e-4);
        let ratio = short[0] / one[0];
        assert!((0..8).all(|i| (short[i] - one[i] * ratio).abs() < 1e-4));
    }

    #[test]
    fn packed_is_base64_with_its_padding() {
        // 1.0 is 00 00 80 3f.
        assert_eq!(packed(&[1.0]), "AACAPw==");
        assert_eq!(packed(&[1.0, -1.0]), "AACAPwAAgL8=");
        assert_eq!(packed(&[0.0, 0.0, 0.0]).len(), 16);
    }
}
